#pragma once

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "latchd/v1/common.pb.h"
#include "runtime/engine.h"

// The only place where engine errors become gRPC statuses. Details travel as google.rpc.Status in
// the trailer grpc-status-details-bin, where every gRPC language has a helper to read them.

namespace latchd {

// Longest message sent: a gRPC trailer must stay below 8 KiB after percent-encoding.
inline constexpr size_t kMaxStatusMessageBytes = 1024;

// Same code and message. UNAVAILABLE and RESOURCE_EXHAUSTED carry RetryInfo.
grpc::Status ToGrpcStatus(const absl::Status& status);

// FAILED_PRECONDITION with the InvariantViolation as detail.
grpc::Status ToGrpcStatus(const Violation& violation);

v1::InvariantViolation ToProto(const Violation& violation);

// "NOT_FOUND" and so on: the label of the RPC metrics.
std::string CodeName(grpc::StatusCode code);

// What every refused request gets while the daemon drains.
absl::Status DrainingError();

}  // namespace latchd
