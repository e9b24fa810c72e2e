#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/api/ops.h"
#include "runtime/device/device.h"

namespace latchd {

// A step as data: op calls over fixed buffers, in order. Run it eagerly, record it, or print it.
struct StepProgram {
  std::vector<OpCall> calls;
};

// Submits every call; stops at the first failure, with the call's label and layer in front of the
// message.
absl::Status Submit(const StepProgram& program, Device& device);

// Bytes that the op must move at least once through device memory: weights, activations, and KV at
// `kv_tokens` valid tokens a row. What a benchmark divides by the time.
size_t MinimumBytes(const OpCall& call, int64_t kv_tokens);

// One line an op, without addresses: "layer 3 qkv: linear f16 [960, 576] rows=1 norm store".
std::string ToString(const OpCall& call);
std::string ToString(const StepProgram& program);

}  // namespace latchd
