#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/connection.h"
#include "client/options.h"
#include "latchd/v1/decode.pb.h"

namespace latchd::client {

struct StepOptions {
  std::optional<int32_t> forced_token_id;  // append this instead of the session's next token
  int32_t top_logprobs = 0;                // 0..20 alternatives, descending
  bool want_logits = false;                // [vocab] floats: costs transport, so only on request
};

// One bidirectional Step call: one captured decode step a message, answered in the order sent. Two
// ways to use it:
//   Step() / StepForced()     send one request and wait for its answer;
//   Send() ... Receive() ...  keep several requests in flight (they may name different sessions).
// Never retried: a step that may have been applied is not repeated. After an error of the stream
// itself (every later call returns it) ask GetSession for the exact length and open a new stream.
//
// Thread-safety: one thread may Send while another Receives; Cancel may come from any thread; all
// else needs the caller's own lock. Destruction cancels what is still in flight.
class StepStream {
 public:
  ~StepStream();
  StepStream(const StepStream&) = delete;
  StepStream& operator=(const StepStream&) = delete;

  // Appends the session's next token and lets the model choose another one. `session_id` is that of
  // OpenStepStream. FAILED_PRECONDITION with a violation (see GetViolation): the step wrote nothing
  // and the session is poisoned. Any other refusal has the code of StepError. Both leave the stream
  // usable. REQUIRES: no response is outstanding (else FAILED_PRECONDITION, and nothing is sent).
  absl::StatusOr<v1::StepResult> Step(const StepOptions& options = {});
  // The same, appending `token_id`.
  absl::StatusOr<v1::StepResult> StepForced(int32_t token_id, StepOptions options = {});

  // Pipelining. Send returns once the request is handed to the transport.
  absl::Status Send(const v1::StepRequest& request);
  // The oldest outstanding response, with its outcome in-band. OUT_OF_RANGE at once when none is
  // outstanding: count the Sends that returned, do not poll.
  absl::StatusOr<v1::StepResponse> Receive();
  int64_t outstanding() const { return sent_ - received_; }

  // No more requests: reads what is outstanding, then returns how the call ended. Idempotent.
  absl::Status Finish();
  // Ends the call at once with CANCELLED. Steps already running are applied whole or not at all.
  void Cancel() { context_.TryCancel(); }

 private:
  friend class Client;
  StepStream(std::shared_ptr<Connection> connection, uint64_t session_id,
             Cancellation* cancellation);

  std::optional<absl::Status> ended() const;
  // Collects the status of the call that has no more to read; remembers and returns it.
  absl::Status End(bool expected);

  const std::shared_ptr<Connection> connection_;
  const uint64_t session_id_;
  grpc::ClientContext context_;
  const CancellableScope scope_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::StepRequest, v1::StepResponse>> call_;
  std::atomic<int64_t> sent_ = 0;
  std::atomic<int64_t> received_ = 0;
  mutable absl::Mutex mutex_;
  std::optional<absl::Status> ended_ ABSL_GUARDED_BY(mutex_);  // how the call ended, once known
};

// The outcome of one response as Step() returns it.
absl::StatusOr<v1::StepResult> StepOutcome(v1::StepResponse response);

}  // namespace latchd::client
