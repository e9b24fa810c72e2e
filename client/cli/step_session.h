#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/command.h"
#include "client/cli/step_command.h"

namespace latchd::cli {

// The session behind `latchctl step`: runs commands, prints what happened, remembers what was
// appended. Not thread-safe.
class StepSession {
 public:
  // `id`: a session that exists and stays open.
  StepSession(Context& context, client::Session session, uint64_t id, int32_t top_logprobs);

  absl::Status Prefill(const v1::PrefillRequest& request);
  // Takes over a session as it is: its length and pending token.
  absl::Status Attach();
  // Not OK: the command failed; the session may go on.
  absl::Status Run(const StepCommand& command);

  uint64_t id() const { return id_; }
  int64_t length_tokens() const { return length_tokens_; }
  bool poisoned() const { return poisoned_; }

 private:
  absl::Status RunPlain(PlainCommand::Kind kind);
  absl::Status Accept(int64_t steps);
  absl::Status ForceText(const std::string& text);
  absl::Status StepOnce(std::optional<int32_t> forced_token_id);
  // After a call that changed the session other than by a step.
  absl::Status Adopt(const absl::StatusOr<v1::Session>& session, const char* event);
  void ShowNext(const char* event, const v1::Timings& timings);

  Context& context_;
  client::Session owned_;
  const uint64_t id_;
  const int32_t top_logprobs_;
  std::unique_ptr<client::StepStream> stream_;
  int64_t length_tokens_ = 0;
  bool poisoned_ = false;
  std::optional<v1::NextToken> next_;
  std::vector<int32_t> appended_;  // the tokens appended by steps, oldest first
};

}  // namespace latchd::cli
