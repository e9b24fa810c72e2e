#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/engine.h"
#include "runtime/mutex.h"
#include "runtime/obs/metrics.h"
#include "server/attention_service.h"
#include "server/decode_service.h"
#include "server/http_server.h"
#include "server/options.h"
#include "server/service_context.h"

namespace grpc {
class Server;
}

namespace latchd {

using EngineFactory = std::function<absl::StatusOr<std::unique_ptr<Engine>>(
    const EngineOptions&, Metrics&, const Progress&)>;

// The gRPC and HTTP services over one engine. Thread-safe after Start.
class Server {
 public:
  // All or nothing: checks both addresses, serves HTTP (/readyz says "loading"), makes the engine,
  // then serves gRPC. On an error nothing keeps running and the message names the flag at fault.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const Options& options,
                                                       const EngineFactory& create,
                                                       const Progress& progress);
  // Stops at once if Stop was not called.
  ~Server();

  // Ordered: health goes NOT_SERVING, new work is refused with UNAVAILABLE, running work ends by
  // itself until `deadline` and is cancelled then, gRPC stops, HTTP stops. Idempotent.
  void Stop(absl::Time deadline);

  // OK, or the sticky device fault. Health turns NOT_SERVING by itself within a second of it.
  absl::Status fault() const;

  Engine& engine() { return *engine_; }
  // As bound, with the real port where 0 was asked for; http_address is empty when HTTP is off.
  const std::string& grpc_address() const { return grpc_address_; }
  const std::string& http_address() const { return http_address_; }

 private:
  explicit Server(const Options& options);
  absl::Status StartGrpc(const Address& address);
  void SetServing(bool serving);
  void WatchHealth();
  Readiness JudgeReadiness() const;
  std::string RenderMetrics();

  const Options options_;
  Metrics metrics_;
  std::unique_ptr<Engine> engine_;  // set once, before loaded_
  WorkTracker tracker_;
  DrainSignal drain_;
  std::unique_ptr<WorkerPool> workers_;
  std::unique_ptr<ServiceContext> context_;
  std::unique_ptr<DecodeService> decode_;
  std::unique_ptr<AttentionService> attention_;  // null: the engine has none
  std::unique_ptr<grpc::Server> grpc_;
  std::unique_ptr<HttpServer> http_;
  std::string grpc_address_, http_address_;
  std::atomic<bool> loaded_{false};
  std::atomic<bool> stopping_{false};
  std::thread watcher_;
  Mutex watch_mutex_;  // with watch_wake_, only for stopping_
  CondVar watch_wake_;
  Mutex stop_mutex_;
  bool stopped_ ABSL_GUARDED_BY(stop_mutex_) = false;
};

}  // namespace latchd
