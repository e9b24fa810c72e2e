#include "server/unary_call.h"

#include <utility>

#include "server/grpc_status.h"

namespace latchd {

absl::Status BusyError() {
  return absl::ResourceExhaustedError("too many calls are waiting; try again");
}

grpc::ServerUnaryReactor* RunUnary(ServiceContext& context, grpc::CallbackServerContext* rpc,
                                   const char* method, Where where,
                                   std::function<absl::Status()> handler) {
  auto* call = new UnaryCall(context, rpc, method);
  if (where == Where::kHere) {
    call->End(ToGrpcStatus(handler()));
  } else if (!context.workers.TryRun(
                 [call, handler = std::move(handler)] { call->End(ToGrpcStatus(handler())); })) {
    call->End(ToGrpcStatus(BusyError()));
  }
  return call;
}

}  // namespace latchd
