#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "server/service_context.h"

namespace latchd {

// One unary RPC: counted, logged, finished once. Deletes itself when gRPC is done with it; request
// and response live until Finish.
class UnaryCall : public grpc::ServerUnaryReactor {
 public:
  UnaryCall(ServiceContext& context, grpc::CallbackServerContext* rpc, const char* method)
      : record_(context, method, rpc->peer()) {}

  // Exactly once, from any thread; the object may be gone when it returns.
  void End(const grpc::Status& status) {
    record_.Done(status);
    Finish(status);
  }
  void OnDone() override { delete this; }

 private:
  RpcRecord record_;
};

enum class Where { kHere, kWorker };

// Runs `handler` here or on a worker and finishes the call with what it returns. Everything that
// waits for the step loop belongs on a worker.
grpc::ServerUnaryReactor* RunUnary(ServiceContext& context, grpc::CallbackServerContext* rpc,
                                   const char* method, Where where,
                                   std::function<absl::Status()> handler);

// What a call gets when the queue of the workers is full.
absl::Status BusyError();

// A Prefill: an engine request that the client may cancel.
class PrefillCall final : public UnaryCall {
 public:
  PrefillCall(ServiceContext& context, grpc::CallbackServerContext* rpc)
      : UnaryCall(context, rpc, "Prefill"), engine_(context.engine) {}

  void OnCancel() override { link_->Cancel(engine_); }
  // Outlives the call: the engine's submit returns after its answer may have ended the call.
  const std::shared_ptr<CancelLink>& link() const { return link_; }

 private:
  Engine& engine_;
  const std::shared_ptr<CancelLink> link_ = std::make_shared<CancelLink>();
};

}  // namespace latchd
