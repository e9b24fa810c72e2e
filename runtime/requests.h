#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/session_info.h"

// What the step loop is asked for and what it answers: Prefill, Step, Generate and the faults of
// tests.

namespace latchd {

using RequestId = uint64_t;  // of a queued Prefill, Step or Generate; for Cancel

struct TokenLogprob {
  int32_t token = -1;
  float logprob = 0.0f;
};

struct Timings {
  absl::Duration queued;  // from submission until the step loop took it
  absl::Duration device;  // from launch until the result was read
};

// What one sampled position yields. `token` is the model's choice for the position after
// `length_tokens`; it is not in the KV cache until a later Step, Prefill(append_next_token) or
// Generate appends it.
struct Sampled {
  int32_t token = -1;
  float logprob = 0.0f;           // natural log, before temperature and filters
  std::vector<TokenLogprob> top;  // on request, descending
  std::vector<float> logits;  // [vocab], on request: as sampling saw them, after bias and penalties
};

struct PrefillRequest {
  SessionId session = 0;
  std::vector<int32_t> tokens;
  // Append the session's next token before `tokens`; otherwise it is dropped.
  bool append_next_token = false;
  int32_t top_logprobs = 0;  // 0..20
  bool want_logits = false;  // logits of the last position
  absl::Time deadline = absl::InfiniteFuture();
};
struct PrefillResult {
  int64_t length_tokens = 0;
  std::optional<Violation> violation;
  Sampled next;
  Timings timings;
};

struct StepRequest {
  SessionId session = 0;
  std::optional<int32_t> forced_token;  // append this instead of the session's next token
  int32_t top_logprobs = 0;
  bool want_logits = false;
  absl::Time deadline = absl::InfiniteFuture();
};
struct StepResult {
  int64_t length_tokens = 0;  // after the step; unchanged by a violation
  int32_t appended_token = -1;
  std::optional<Violation> violation;
  Sampled next;
  Timings timings;
};

enum class FinishReason : uint8_t {
  kLength,
  kStopToken,
  kStopString,
  kCapacity,
  kCancelled,
  kDeadline,
  kViolation,
  kError
};

struct GenerateRequest {
  SessionId session = 0;
  std::vector<int32_t> prompt;     // may be empty: go on from the session's next token
  bool append_next_token = false;  // as in PrefillRequest
  int64_t max_tokens = 128;
  std::optional<SamplingOptions> sampling;  // replaces the session's for this call and after it
  std::vector<int32_t> stop_tokens;         // besides the model's EOS tokens
  std::vector<std::string> stop_strings;
  bool ignore_eos = false;
  int32_t top_logprobs = 0;
  absl::Time deadline = absl::InfiniteFuture();
};
struct GeneratedToken {
  Sampled sampled;
  std::string text;  // certain text so far not sent; held back while it may begin a stop string
  int64_t length_tokens = 0;
  Timings timings;
};
struct GenerateSummary {
  FinishReason reason = FinishReason::kLength;
  std::string text;  // text left to send
  std::optional<Violation> violation;
  absl::Status error;  // for kError
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0;
  absl::Duration prefill_time, decode_time;
  std::string matched_stop;  // for kStopString
};

// Sets things wrong on purpose, so that tests see each invariant reported. Only with
// EngineOptions::fault_injection.
struct FaultRequest {
  SessionId session = 0;
  std::optional<int32_t> seqlens_k;  // used by the next step instead of the true length
  std::optional<int64_t> position;   // explicit rotary position of the next step
  std::optional<int32_t> token;  // appended by the next step without the server's own range check
  // Written over the page-table entry of the next token, until Clear/Truncate/Reset.
  std::optional<int32_t> page;
  // Written over element 0 of the final norm; restored by restore_weights.
  std::optional<float> norm_weight;
  bool restore_weights = false;
};

}  // namespace latchd
