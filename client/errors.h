#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "latchd/v1/common.pb.h"

namespace grpc {
class Status;
}

// Every call of the client library fails with an absl::Status of the code and message that the
// server sent. What the server attached (google.rpc.Status details) travels in the status'
// payloads; the functions below take it out again.

namespace latchd::client {

// The violated device invariant behind a FAILED_PRECONDITION, or nothing when `status` is another
// error. The session is poisoned: its KV cache is unchanged, each step is refused, until
// ClearLatch, Truncate or Reset.
std::optional<v1::InvariantViolation> GetViolation(const absl::Status& status);

// How long the server asks to wait before trying again, or nothing when it does not say.
std::optional<absl::Duration> GetRetryDelay(const absl::Status& status);

// "PRESENT_CAPACITY", ... in bit order, as in kernels/api/invariants.h.
std::vector<std::string> InvariantNames(const v1::InvariantViolation& violation);

// FAILED_PRECONDITION with `violation` as its payload: an in-band violation as an error.
absl::Status ViolationError(const v1::InvariantViolation& violation);

// The one converter from gRPC's status. Details that cannot be parsed are left out; code and
// message always stay.
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace latchd::client
