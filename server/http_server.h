#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "server/options.h"

namespace httplib {
class Server;
}

namespace latchd {

// What /readyz answers.
struct Readiness {
  bool ready = false;
  bool alive = true;   // false: sticky device fault; /healthz fails too
  std::string reason;  // why not ready: "loading", "draining", "stalled: ...", "fault: ..."
  std::string model;
};

// /healthz (is a restart needed?), /readyz (may traffic come?) and /metrics, over plain HTTP.
// Thread-safe.
class HttpServer {
 public:
  struct Handlers {
    std::function<Readiness()> readiness;
    std::function<std::string()> metrics;  // Prometheus text
  };

  // Binds and serves. INVALID_ARGUMENT naming the address when it is in use or cannot be bound.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const Address& address,
                                                           Handlers handlers);
  // Stops and joins.
  ~HttpServer();

  int port() const { return port_; }

 private:
  HttpServer();

  std::unique_ptr<httplib::Server> server_;
  Handlers handlers_;
  int port_ = 0;
  std::thread thread_;
};

}  // namespace latchd
