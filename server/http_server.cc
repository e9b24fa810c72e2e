#include "server/http_server.h"

#include <httplib.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"

namespace latchd {
namespace {

// Probes and one scraper need two. The others are for connections that say nothing, each of which
// holds a thread for the two seconds of the timeouts below; what comes beyond waits its turn.
constexpr size_t kThreads = 32;

void Answer(httplib::Response& response, int status, const nlohmann::json& body) {
  response.status = status;
  response.set_content(body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n",
                       "application/json");
}

}  // namespace

HttpServer::HttpServer() : server_(std::make_unique<httplib::Server>()) {}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const Address& address,
                                                              Handlers handlers) {
  std::unique_ptr<HttpServer> http(new HttpServer());
  http->handlers_ = std::move(handlers);
  httplib::Server& server = *http->server_;
  HttpServer* self = http.get();
  server.Get("/healthz", [self](const httplib::Request&, httplib::Response& response) {
    const Readiness now = self->handlers_.readiness();
    Answer(response, now.alive ? 200 : 503,
           {{"alive", now.alive}, {"reason", now.alive ? "" : now.reason}});
  });
  server.Get("/readyz", [self](const httplib::Request&, httplib::Response& response) {
    const Readiness now = self->handlers_.readiness();
    Answer(response, now.ready ? 200 : 503,
           {{"ready", now.ready}, {"reason", now.reason}, {"model", now.model}});
  });
  server.Get("/metrics", [self](const httplib::Request&, httplib::Response& response) {
    response.set_content(self->handlers_.metrics(), "text/plain; version=0.0.4; charset=utf-8");
  });
  server.set_error_handler([](const httplib::Request&, httplib::Response& response) {
    if (!response.body.empty()) return;
    Answer(response, response.status, {{"error", "expected GET /healthz, /readyz or /metrics"}});
  });
  server.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
  server.set_keep_alive_max_count(100);
  // A connection occupies a thread: an idle or slow one may not hold it for long.
  server.set_keep_alive_timeout(2);
  server.set_read_timeout(2);
  server.set_write_timeout(5);
  server.set_payload_max_length(4096);
  // The library's default is SO_REUSEPORT, with which a second daemon would share the port
  // silently.
  server.set_socket_options([](socket_t socket) {
    const int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  });

  errno = 0;
  if (address.port == 0) {
    http->port_ = server.bind_to_any_port(address.host);
    if (http->port_ < 0) http->port_ = 0;
  } else if (server.bind_to_port(address.host, address.port)) {
    http->port_ = address.port;
  }
  if (http->port_ == 0) {
    const int error = errno;
    return absl::InvalidArgumentError(
        absl::StrCat("--http: cannot listen on ", address.host, ":", address.port, ": ",
                     error != 0 ? std::strerror(error) : "cannot resolve the host"));
  }
  http->thread_ = std::thread([&server] { server.listen_after_bind(); });
  // A stop() before the loop runs would be lost, and the destructor would then wait for ever.
  for (int i = 0; i < 5000 && !server.is_running(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return http;
}

HttpServer::~HttpServer() {
  server_->stop();
  if (thread_.joinable()) thread_.join();
}

}  // namespace latchd
