#pragma once

#include "absl/status/statusor.h"
#include "latchd/v1/decode.pb.h"
#include "runtime/engine.h"

namespace latchd {

// Checks a Prefill, asking the engine for the session's length where the meaning of an unset
// add_special_tokens depends on it. Waits for the step loop: worker threads only.
absl::StatusOr<PrefillRequest> PrepareForSession(Engine& engine, const v1::PrefillRequest& request);

// The same for Generate; also tells the seed that will be used, for Finish.
struct PreparedGenerate {
  GenerateRequest request;
  uint64_t seed = 0;
};
absl::StatusOr<PreparedGenerate> PrepareForSession(Engine& engine,
                                                   const v1::GenerateRequest& request);

}  // namespace latchd
