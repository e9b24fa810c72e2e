#include "server/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/logging.h"
#include "server/malformed_requests.h"
#include "server/startup.h"

namespace latchd {
namespace {

constexpr int kWorkers = 4;
constexpr size_t kMaxQueuedCalls = 1024;
// After the engine is idle, the streams only have their last messages to send.
constexpr absl::Duration kShutdownGrace = absl::Seconds(2);
constexpr std::chrono::milliseconds kWatchInterval{200};

absl::StatusOr<std::string> ReadPem(const std::string& path, const char* flag) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  if (!file || text.str().find("-----BEGIN") == std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, ": expected a readable PEM file, got '", path, "'"));
  }
  return text.str();
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> Credentials(const Options& options) {
  if (options.tls_cert.empty()) return grpc::InsecureServerCredentials();
  auto cert = ReadPem(options.tls_cert, "tls-cert");
  if (!cert.ok()) return cert.status();
  auto key = ReadPem(options.tls_key, "tls-key");
  if (!key.ok()) return key.status();
  grpc::SslServerCredentialsOptions ssl;
  ssl.pem_key_cert_pairs.push_back({*key, *cert});
  return grpc::SslServerCredentials(ssl);
}

std::string Join(const Address& address, int port) {
  const bool ipv6 = address.host.find(':') != std::string::npos;
  return absl::StrCat(ipv6 ? "[" : "", address.host, ipv6 ? "]" : "", ":", port);
}

void Configure(grpc::ServerBuilder& builder, const Options& options) {
  const int max_bytes = static_cast<int>(options.max_message_bytes);
  builder.SetMaxReceiveMessageSize(max_bytes);
  builder.SetMaxSendMessageSize(max_bytes);
  // Without this a second daemon would share the port silently.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Finds dead peers of long streams within a minute, and allows clients to ping as often.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 30000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10000);
}

}  // namespace

Server::Server(const Options& options) : options_(options) {}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const Options& options,
                                                      const EngineFactory& create,
                                                      const Progress& progress) {
  std::unique_ptr<Server> server(new Server(options));
  const auto grpc_address = ParseAddress(options.listen);
  if (!grpc_address) {
    return absl::InvalidArgumentError(absl::StrCat("--listen: bad address '", options.listen, "'"));
  }
  // All that can fail cheaply comes before the load.
  absl::Status status = CheckAddressFree(*grpc_address, "listen");
  if (status.ok()) status = Credentials(options).status();
  if (!status.ok()) return status;
  if (!options.http.empty()) {
    const auto address = ParseAddress(options.http);
    if (!address || !address->unix_path.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("--http: bad address '", options.http, "'"));
    }
    Server* self = server.get();
    auto http = HttpServer::Start(*address, {[self] { return self->JudgeReadiness(); },
                                             [self] { return self->RenderMetrics(); }});
    if (!http.ok()) return http.status();
    server->http_ = *std::move(http);
    server->http_address_ = Join(*address, server->http_->port());
  }
  auto engine = create(options.engine, server->metrics_, progress);
  if (!engine.ok()) return engine.status();
  server->engine_ = *std::move(engine);
  status = server->StartGrpc(*grpc_address);
  if (!status.ok()) return status;

  const EngineStatus now = server->engine_->status();
  server->metrics_.SetInfo(LATCHD_VERSION, now.backend, now.model_name, now.dtype);
  server->metrics_.SetMemory("weights", static_cast<int64_t>(now.weight_bytes));
  server->metrics_.SetMemory("kv", static_cast<int64_t>(now.kv_bytes));
  server->metrics_.SetMemory("graphs", static_cast<int64_t>(now.graph_bytes));
  server->metrics_.SetMemory("other", static_cast<int64_t>(now.other_bytes));
  server->loaded_ = true;
  server->SetServing(true);
  server->watcher_ = std::thread([self = server.get()] { self->WatchHealth(); });
  return server;
}

absl::Status Server::StartGrpc(const Address& address) {
  workers_ = std::make_unique<WorkerPool>(kWorkers, kMaxQueuedCalls);
  context_ = std::make_unique<ServiceContext>(ServiceContext{
      *engine_, metrics_, *workers_, tracker_, drain_, options_.engine.fault_injection,
      engine_->attention(), options_.max_message_bytes});
  decode_ = std::make_unique<DecodeService>(*context_);
  if (context_->attention != nullptr) {
    attention_ = std::make_unique<AttentionService>(*context_);
  }
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  auto credentials = Credentials(options_);
  if (!credentials.ok()) return credentials.status();
  grpc::ServerBuilder builder;
  int port = 0;
  const bool is_unix = !address.unix_path.empty();
  builder.AddListeningPort(
      is_unix ? absl::StrCat("unix:", address.unix_path) : Join(address, address.port),
      *credentials, &port);
  Configure(builder, options_);
  builder.RegisterService(decode_.get());
  if (attention_ != nullptr) builder.RegisterService(attention_.get());
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
  interceptors.push_back(ExplainMalformedRequests());
  builder.experimental().SetInterceptorCreators(std::move(interceptors));
  grpc_ = builder.BuildAndStart();
  if (grpc_ == nullptr || port == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--listen: cannot listen on ", options_.listen,
                     options_.tls_cert.empty() ? ": it was taken or cannot be bound"
                                               : ": taken, not bindable, or a bad certificate"));
  }
  grpc_address_ = is_unix ? options_.listen : Join(address, port);
  SetServing(false);
  return absl::OkStatus();
}

Server::~Server() { Stop(absl::Now()); }

void Server::SetServing(bool serving) {
  grpc::HealthCheckServiceInterface* health = grpc_->GetHealthCheckService();
  if (health == nullptr) return;
  health->SetServingStatus(serving);
  health->SetServingStatus(v1::DecodeService::service_full_name(), serving);
  if (attention_ != nullptr) {
    health->SetServingStatus(v1::AttentionService::service_full_name(), serving);
  }
}

absl::Status Server::fault() const { return loaded_ ? engine_->status().fault : absl::OkStatus(); }

Readiness Server::JudgeReadiness() const {
  Readiness out;
  if (!loaded_) {
    out.reason = "loading the model";
    return out;
  }
  const EngineStatus status = engine_->status();
  out.model = status.model_name;
  if (!status.fault.ok()) {
    out.alive = false;
    out.reason = absl::StrCat("device fault: ", std::string(status.fault.message()));
    return out;
  }
  if (stopping_ || status.draining) {
    out.reason = "draining";
    return out;
  }
  // A flag would say "fine" for ever: what counts is when a step last went well while somebody
  // waits for one.
  if (const auto oldest = tracker_.oldest()) {
    const absl::Duration age = absl::Now() - std::max(*oldest, status.last_good_step);
    if (age > options_.stall_timeout) {
      out.reason = absl::StrCat("stalled: work is pending and no step went well for ",
                                absl::FormatDuration(absl::Floor(age, absl::Seconds(1))));
      return out;
    }
  }
  out.ready = true;
  return out;
}

std::string Server::RenderMetrics() {
  metrics_.SetReady(JudgeReadiness().ready);
  if (loaded_) {
    const absl::Time last = engine_->status().last_good_step;
    metrics_.SetLastGoodStep(std::max(0.0, absl::ToDoubleSeconds(last - absl::UnixEpoch())));
  }
  return metrics_.Render();
}

void Server::WatchHealth() {
  bool serving = true;
  while (!stopping_) {
    const Readiness now = JudgeReadiness();
    if (now.ready != serving && !stopping_) {
      serving = now.ready;
      SetServing(serving);
      Log(serving ? LogLevel::kInfo : LogLevel::kError, serving ? "serving again" : "not serving",
          {{"reason", now.reason}});
    }
    const auto next = std::chrono::steady_clock::now() + kWatchInterval;
    MutexLock lock(watch_mutex_);
    while (!stopping_ && watch_wake_.WaitUntil(watch_mutex_, next)) {
    }
  }
}

void Server::Stop(absl::Time deadline) {
  MutexLock lock(stop_mutex_);
  if (stopped_) return;
  stopped_ = true;
  {
    MutexLock watch(watch_mutex_);
    stopping_ = true;
  }
  watch_wake_.NotifyAll();
  if (watcher_.joinable()) watcher_.join();
  if (grpc_ != nullptr) {
    SetServing(false);
    drain_.Fire();
    engine_->Drain(deadline);
    grpc_->Shutdown(absl::ToChronoTime(std::max(deadline, absl::Now()) + kShutdownGrace));
    grpc_->Wait();
  }
  workers_.reset();  // runs what streams left to it, such as closing their sessions
  http_.reset();
}

}  // namespace latchd
