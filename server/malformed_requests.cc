#include "server/malformed_requests.h"

#include <string_view>

namespace latchd {
namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::Interceptor;
using grpc::experimental::InterceptorBatchMethods;
using grpc::experimental::ServerInterceptorFactoryInterface;
using grpc::experimental::ServerRpcInfo;

constexpr char kMessage[] =
    "request: expected a message as proto/latchd/v1 defines it, its strings in UTF-8, got bytes "
    "that do not parse: check the client's generated code and the encoding of its texts";

class Explain final : public Interceptor {
 public:
  void Intercept(InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      const grpc::Status status = methods->GetSendStatus();
      // Ours always have a message.
      if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED &&
          status.error_message().empty()) {
        methods->ModifySendStatus({grpc::StatusCode::INVALID_ARGUMENT, kMessage});
      }
    }
    methods->Proceed();
  }
};

class Factory final : public ServerInterceptorFactoryInterface {
 public:
  Interceptor* CreateServerInterceptor(ServerRpcInfo* info) override {
    using Type = ServerRpcInfo::Type;
    const bool one_request = info->type() == Type::UNARY || info->type() == Type::SERVER_STREAMING;
    // nullptr: the call pays nothing. Unknown methods and gRPC's own services stay as they are.
    if (!one_request || info->method() == nullptr) return nullptr;
    return std::string_view(info->method()).rfind("/latchd.v1.", 0) == 0 ? new Explain : nullptr;
  }
};

}  // namespace

std::unique_ptr<ServerInterceptorFactoryInterface> ExplainMalformedRequests() {
  return std::make_unique<Factory>();
}

}  // namespace latchd
