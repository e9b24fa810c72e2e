#pragma once

#include "kernels/api/op_status.h"
#include "kernels/cuda/gqa/decode_plan.cuh"

// Decode attention, one pair of functions per dtype in a file each, so that they compile side by
// side. `p.split_blocks` is the callee's to choose.

namespace latchd::cuda {

OpStatus RunDecodeF32(const AttendParams& p, void* stream);
OpStatus RunDecodeF16(const AttendParams& p, void* stream);
OpStatus RunDecodeBF16(const AttendParams& p, void* stream);
OpStatus PrepareDecodeF32();
OpStatus PrepareDecodeF16();
OpStatus PrepareDecodeBF16();

}  // namespace latchd::cuda
