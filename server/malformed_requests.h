#pragma once

#include <grpcpp/support/server_interceptor.h>

#include <memory>

namespace latchd {

// gRPC answers a request that does not parse, for example for a string that is not UTF-8, with an
// UNIMPLEMENTED that says nothing, before any code of ours runs. This makes it an INVALID_ARGUMENT
// that says what came. Unary and server-streaming calls only: in a client's stream such a message
// looks to the server like the end of the stream.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> ExplainMalformedRequests();

}  // namespace latchd
