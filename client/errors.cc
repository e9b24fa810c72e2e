#include "client/errors.h"

#include <grpcpp/support/status.h>

#include <cstdint>

#include "absl/strings/cord.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace latchd::client {
namespace {

constexpr char kTypePrefix[] = "type.googleapis.com/";

template <class Message>
std::string TypeUrl() {
  return kTypePrefix + std::string(Message::descriptor()->full_name());
}

template <class Message>
std::optional<Message> GetPayload(const absl::Status& status) {
  const auto payload = status.GetPayload(TypeUrl<Message>());
  if (!payload.has_value()) return std::nullopt;
  Message message;
  if (!message.ParseFromString(std::string(*payload))) return std::nullopt;
  return message;
}

}  // namespace

std::optional<v1::InvariantViolation> GetViolation(const absl::Status& status) {
  return GetPayload<v1::InvariantViolation>(status);
}

std::optional<absl::Duration> GetRetryDelay(const absl::Status& status) {
  const auto info = GetPayload<google::rpc::RetryInfo>(status);
  if (!info.has_value()) return std::nullopt;
  return absl::Seconds(info->retry_delay().seconds()) +
         absl::Nanoseconds(info->retry_delay().nanos());
}

std::vector<std::string> InvariantNames(const v1::InvariantViolation& violation) {
  std::vector<std::string> names;
  const std::string prefix = "INVARIANT_";
  for (const int value : violation.invariants()) {
    // A newer server may know more invariants than this build: keep the number rather than drop it.
    const std::string& name = v1::Invariant_Name(static_cast<v1::Invariant>(value));
    names.push_back(name.empty() ? "INVARIANT_" + std::to_string(value)
                                 : name.substr(name.rfind(prefix, 0) == 0 ? prefix.size() : 0));
  }
  return names;
}

absl::Status ViolationError(const v1::InvariantViolation& violation) {
  absl::Status status = absl::FailedPreconditionError(violation.message());
  status.SetPayload(TypeUrl<v1::InvariantViolation>(), absl::Cord(violation.SerializeAsString()));
  return status;
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  // Both enums are google.rpc.Code, number for number.
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  google::rpc::Status details;
  if (!status.error_details().empty() && details.ParseFromString(status.error_details())) {
    for (const auto& detail : details.details()) {
      result.SetPayload(detail.type_url(), absl::Cord(detail.value()));
    }
  }
  return result;
}

}  // namespace latchd::client
