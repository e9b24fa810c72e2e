#pragma once

#include <grpcpp/support/status.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "runtime/attention/attention_engine.h"
#include "runtime/engine.h"
#include "runtime/mutex.h"
#include "runtime/obs/metrics.h"
#include "server/drain_signal.h"
#include "server/work_tracker.h"
#include "server/worker_pool.h"

namespace latchd {

// What every call handler needs. Owned by Server, outlives every call.
struct ServiceContext {
  Engine& engine;
  Metrics& metrics;
  WorkerPool& workers;
  WorkTracker& tracker;
  DrainSignal& drain;
  bool fault_injection = false;
  AttentionEngine* attention = nullptr;  // null: AttentionService is not served
  int64_t max_message_bytes = 0;         // of one gRPC message, either way
};

// Counts and logs one RPC; exactly one Done. Never sees what a client sent, so prompts cannot reach
// the log.
class RpcRecord {
 public:
  RpcRecord(ServiceContext& context, const char* method, const std::string& peer);
  void Done(const grpc::Status& status);

 private:
  ServiceContext& context_;
  const char* method_;
  std::string peer_;
  absl::Time start_;
};

// Joins an engine request with the cancel of its RPC, whichever comes first: the id is known only
// after the submit returns, while the client may cancel before, and the engine may answer before.
// Thread-safe.
class CancelLink {
 public:
  // The request got its id; cancels it when Cancel came before.
  void Submitted(Engine& engine, RequestId id);
  // Idempotent.
  void Cancel(Engine& engine);
  bool cancelled() const;

 private:
  mutable Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  RequestId id_ ABSL_GUARDED_BY(mutex_) = 0;
};

// The deadline of a gRPC call; InfiniteFuture when the client set none.
absl::Time ToAbslDeadline(std::chrono::system_clock::time_point deadline);

}  // namespace latchd
