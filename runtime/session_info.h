#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/api/invariants.h"

// A session as clients see it: how it was opened, how it samples, what state it is in.

namespace latchd {

using SessionId = uint64_t;  // never reused, not even across restarts; 0 is no session

struct SamplingOptions {
  float temperature = 0.0f;         // 0 = greedy, or [0.001, 100]
  int32_t top_k = 0;                // 0 = off
  float top_p = 1.0f;               // (0, 1]
  float min_p = 0.0f;               // [0, 1)
  float repetition_penalty = 1.0f;  // [0.01, 100]
  float presence_penalty = 0.0f;    // [-2, 2]
  float frequency_penalty = 0.0f;   // [-2, 2]
  uint64_t seed = 0;
  std::vector<std::pair<int32_t, float>> logit_bias;  // at most kMaxLogitBias
};

// The one judge of sampling options. INVALID_ARGUMENT naming the field, what was expected and what
// came.
absl::Status CheckSampling(const SamplingOptions& options, int64_t vocab);

struct SessionOptions {
  int64_t capacity_tokens = 0;  // 0 = max_capacity
  SamplingOptions sampling;
  // 0 = the engine's default; idle time after which it is closed.
  absl::Duration ttl = absl::ZeroDuration();
  std::string owner;  // client-chosen label
};

enum class SessionState : uint8_t { kIdle, kPrefilling, kStepping, kGenerating, kPoisoned };

struct SessionInfo {
  SessionId id = 0;
  SessionState state = SessionState::kIdle;
  int64_t length_tokens = 0;  // valid KV length
  int64_t capacity_tokens = 0;
  std::optional<int32_t> next_token;  // sampled, not yet appended
  Latch latch = {};                   // mask 0 when healthy
  int64_t steps = 0;                  // steps applied
  SamplingOptions sampling;
  absl::Duration ttl;
  absl::Time created, last_used;
  std::string owner;
};

// A latched device error, ready for a client.
struct Violation {
  Latch latch;
  std::string text;  // e.g. "PRESENT_CAPACITY: total 9 exceeds capacity 8 (row 0, step 3)"
};
std::string DescribeLatch(const Latch& latch);

}  // namespace latchd
