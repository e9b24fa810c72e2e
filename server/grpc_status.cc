#include "server/grpc_status.h"

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "kernels/api/invariants.h"
#include "server/utf8.h"

namespace latchd {
namespace {

// Long enough that a crowd of clients does not spin, short enough that a drained pod's replacement
// is found quickly.
constexpr int64_t kRetryDelaySeconds = 1;

grpc::Status Pack(const google::rpc::Status& rich) {
  return grpc::Status(static_cast<grpc::StatusCode>(rich.code()), rich.message(),
                      rich.SerializeAsString());
}

google::rpc::Status Rich(int code, std::string_view message) {
  google::rpc::Status rich;
  rich.set_code(code);
  rich.set_message(TruncateUtf8(ToValidUtf8(message), kMaxStatusMessageBytes));
  return rich;
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  // absl's codes are numbered as gRPC's; a code outside the list would be dropped by clients, so it
  // becomes UNKNOWN.
  int code = static_cast<int>(status.code());
  if (code < 0 || code > static_cast<int>(grpc::StatusCode::UNAUTHENTICATED)) {
    code = grpc::StatusCode::UNKNOWN;
  }
  google::rpc::Status rich = Rich(code, std::string(status.message()));
  if (code == grpc::StatusCode::UNAVAILABLE || code == grpc::StatusCode::RESOURCE_EXHAUSTED) {
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(kRetryDelaySeconds);
    rich.add_details()->PackFrom(retry);
  }
  return Pack(rich);
}

grpc::Status ToGrpcStatus(const Violation& violation) {
  google::rpc::Status rich = Rich(grpc::StatusCode::FAILED_PRECONDITION, violation.text);
  rich.add_details()->PackFrom(ToProto(violation));
  return Pack(rich);
}

v1::InvariantViolation ToProto(const Violation& violation) {
  v1::InvariantViolation out;
  const Latch& latch = violation.latch;
  out.set_mask(latch.mask);
  for (size_t i = 0; i < kInvariants.size(); ++i) {
    // The enum's values follow the order of the bits, starting at 1.
    if (latch.mask & kInvariants[i].bit) out.add_invariants(static_cast<v1::Invariant>(i + 1));
  }
  out.set_layer(latch.layer);
  out.set_row(latch.row);
  out.set_step(latch.step);
  out.set_value(latch.value);
  out.set_limit(latch.limit);
  out.set_message(ToValidUtf8(violation.text));
  return out;
}

std::string CodeName(grpc::StatusCode code) {
  switch (code) {
    case grpc::StatusCode::OK: return "OK";
    case grpc::StatusCode::CANCELLED: return "CANCELLED";
    case grpc::StatusCode::INVALID_ARGUMENT: return "INVALID_ARGUMENT";
    case grpc::StatusCode::DEADLINE_EXCEEDED: return "DEADLINE_EXCEEDED";
    case grpc::StatusCode::NOT_FOUND: return "NOT_FOUND";
    case grpc::StatusCode::ALREADY_EXISTS: return "ALREADY_EXISTS";
    case grpc::StatusCode::PERMISSION_DENIED: return "PERMISSION_DENIED";
    case grpc::StatusCode::RESOURCE_EXHAUSTED: return "RESOURCE_EXHAUSTED";
    case grpc::StatusCode::FAILED_PRECONDITION: return "FAILED_PRECONDITION";
    case grpc::StatusCode::ABORTED: return "ABORTED";
    case grpc::StatusCode::OUT_OF_RANGE: return "OUT_OF_RANGE";
    case grpc::StatusCode::UNIMPLEMENTED: return "UNIMPLEMENTED";
    case grpc::StatusCode::INTERNAL: return "INTERNAL";
    case grpc::StatusCode::UNAVAILABLE: return "UNAVAILABLE";
    case grpc::StatusCode::DATA_LOSS: return "DATA_LOSS";
    case grpc::StatusCode::UNAUTHENTICATED: return "UNAUTHENTICATED";
    default: return "UNKNOWN";
  }
}

absl::Status DrainingError() {
  return absl::UnavailableError("the daemon is draining and takes no new work");
}

}  // namespace latchd
