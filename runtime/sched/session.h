#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/api/step_tables.h"
#include "runtime/engine.h"

namespace latchd {

struct Request;

// Faults that a test asked for; used up by the next step.
struct PendingFault {
  std::optional<int32_t> seqlens_k;
  std::optional<int64_t> position;
  std::optional<int32_t> token;
  bool any() const { return seqlens_k || position || token; }
};

// Host side of one session. Its truth about KV is `length`: it moves only when a step's result says
// the step is applied. Owned by the step loop.
struct Session {
  SessionInfo info;
  int32_t slot = 0;
  SamplingOptions sampling;
  int32_t top_logprobs = 0;    // what the device's SlotSampling says now
  bool sampling_stale = true;  // sampling must be written to the device before the next sampled row
  PendingFault fault;
  Request* running = nullptr;  // the one request that works on the session

  bool poisoned() const { return info.latch.mask != 0; }
  int64_t room() const { return info.capacity_tokens - info.length_tokens; }
};

SlotSampling ToSlotSampling(const SamplingOptions& options, int32_t top_logprobs);
std::vector<LogitBias> ToLogitBias(const SamplingOptions& options);

}  // namespace latchd
