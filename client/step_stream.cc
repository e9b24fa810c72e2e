#include "client/step_stream.h"

#include <string>
#include <utility>

namespace latchd::client {

absl::StatusOr<v1::StepResult> StepOutcome(v1::StepResponse response) {
  switch (response.outcome_case()) {
    case v1::StepResponse::kResult: return std::move(*response.mutable_result());
    case v1::StepResponse::kViolation: return ViolationError(response.violation());
    case v1::StepResponse::kError:
      return absl::Status(static_cast<absl::StatusCode>(response.error().code()),
                          response.error().message());
    case v1::StepResponse::OUTCOME_NOT_SET: break;
  }
  return absl::InternalError("the server sent a StepResponse without an outcome");
}

StepStream::StepStream(std::shared_ptr<Connection> connection, uint64_t session_id,
                       Cancellation* cancellation)
    : connection_(std::move(connection)), session_id_(session_id), scope_(cancellation, &context_) {
  Connection::SetTimeout(context_, absl::Now() + connection_->options().work_timeout);
  call_ = connection_->stub().Step(&context_);
}

StepStream::~StepStream() {
  if (ended().has_value()) return;
  Cancel();
  // gRPC wants a finished call before its context goes; after a cancel this does not wait for the
  // server.
  v1::StepResponse ignored;
  while (call_->Read(&ignored)) {
  }
  call_->Finish();
}

std::optional<absl::Status> StepStream::ended() const {
  absl::MutexLock lock(&mutex_);
  return ended_;
}

absl::Status StepStream::End(bool expected) {
  absl::Status status = FromGrpcStatus(call_->Finish());
  if (status.ok() && !expected) {
    status = absl::InternalError("StepStream: the server ended the stream with " +
                                 std::to_string(outstanding()) + " responses missing");
  }
  absl::MutexLock lock(&mutex_);
  ended_ = status;
  return status;
}

absl::StatusOr<v1::StepResult> StepStream::Step(const StepOptions& options) {
  // A stream that ended leaves its lost responses outstanding for ever: its own error comes first.
  if (!ended().has_value() && outstanding() != 0) {
    return absl::FailedPreconditionError(
        "StepStream: " + std::to_string(outstanding()) +
        " responses are outstanding; Receive them before the next Step");
  }
  v1::StepRequest request;
  request.set_session_id(session_id_);
  if (options.forced_token_id.has_value()) request.set_forced_token_id(*options.forced_token_id);
  request.set_top_logprobs(options.top_logprobs);
  request.set_want_logits(options.want_logits);
  if (absl::Status status = Send(request); !status.ok()) return status;
  absl::StatusOr<v1::StepResponse> response = Receive();
  if (!response.ok()) return response.status();
  return StepOutcome(*std::move(response));
}

absl::StatusOr<v1::StepResult> StepStream::StepForced(int32_t token_id, StepOptions options) {
  options.forced_token_id = token_id;
  return Step(options);
}

absl::Status StepStream::Send(const v1::StepRequest& request) {
  if (const auto status = ended(); status.has_value()) {
    return status->ok() ? absl::FailedPreconditionError("StepStream: already finished") : *status;
  }
  if (call_->Write(request)) {
    ++sent_;
    return absl::OkStatus();
  }
  // The stream is dead. A receiver may be reading it on another thread, which then collects the
  // reason; only a lone sender may do so here.
  if (outstanding() != 0) return absl::UnavailableError("StepStream: the stream has ended");
  return End(/*expected=*/false);
}

absl::StatusOr<v1::StepResponse> StepStream::Receive() {
  if (const auto status = ended(); status.has_value() && !status->ok()) return *status;
  if (outstanding() == 0) return absl::OutOfRangeError("StepStream: no response is outstanding");
  v1::StepResponse response;
  if (call_->Read(&response)) {
    ++received_;
    return response;
  }
  return End(/*expected=*/false);
}

absl::Status StepStream::Finish() {
  if (const auto status = ended(); status.has_value()) return *status;
  call_->WritesDone();
  v1::StepResponse response;
  while (call_->Read(&response)) ++received_;
  return End(/*expected=*/true);
}

}  // namespace latchd::client
