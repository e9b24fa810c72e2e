#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/engine.h"
#include "runtime/sched/stop_matcher.h"

namespace latchd {

// What a Generate keeps between its tokens.
struct Generation {
  GenerateRequest request;
  std::function<void(const GeneratedToken&)> on_token;
  std::function<void(const GenerateSummary&)> done;
  std::unique_ptr<StreamingDetokenizer> detokenizer;  // null: the model has no tokenizer
  StopMatcher stop_matcher{{}};
  absl::flat_hash_set<int32_t> stop_tokens;
  int64_t generated = 0;
  absl::Time last_token_at = absl::InfinitePast();
  absl::Duration prefill_time, decode_time;
};

// One Prefill, Step or Generate on its way through the step loop, which owns it from submission
// until its one `done` has been called. States: queued -> [prefilling ->] [decoding ->] done.
struct Request {
  enum class State : uint8_t { kQueued, kPrefilling, kDecoding, kDone };

  RequestId id = 0;
  SessionId session = 0;
  State state = State::kQueued;
  absl::Time submitted;
  absl::Time deadline = absl::InfiniteFuture();
  absl::Duration queued;  // until the loop took it
  absl::Duration device;  // in ops, so far

  std::vector<int32_t> prompt;          // Prefill and Generate
  int64_t prompt_done = 0;              // tokens of it already in the KV cache
  bool append_next_token = false;       // prompt[0] is the session's own next token
  std::optional<int32_t> forced_token;  // Step
  int32_t top_logprobs = 0;
  bool want_logits = false;

  // Exactly one of these three is set.
  std::function<void(absl::StatusOr<PrefillResult>)> prefill_done;
  std::function<void(absl::StatusOr<StepResult>)> step_done;
  std::unique_ptr<Generation> generation;

  // Checked: a transition that the list above does not have is a bug of ours, reported with both
  // names.
  absl::Status SetState(State next);
};

}  // namespace latchd
