#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>

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
