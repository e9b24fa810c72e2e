#pragma once

#include "kernels/api/ops.h"

namespace latchd::cpu {

// Rows of a weight block: the unit that threads share out, and one gate/up group of
// Epilogue::kSiluMul.
inline constexpr int64_t kBlockColumns = 16;
// Rows whose sums are taken together before the epilogue.
inline constexpr int64_t kRowGroup = 8;

// Applies bias and epilogue to z, the products of live row `row` with weight rows [begin, begin +
// columns), and writes y. `begin` and `columns` are multiples of 16 for kSiluMul.
void ApplyEpilogue(const LinearOp& op, int64_t row, int64_t begin, int64_t columns, float* z);

// The decode path: a matrix-vector product of each live row.
void LinearDecode(const LinearOp& op, const int32_t* live, int64_t live_count, float* x);

// The prefill path: matrix products of OpenBLAS over blocks of converted weight rows. `scratch`
// holds PrefillScratchFloats(op) floats for each of `threads` threads.
void LinearPrefill(const LinearOp& op, const int32_t* live, int64_t live_count, const float* x,
                   float* scratch, int threads);
int64_t PrefillScratchFloats(const LinearOp& op);

// out [k] = x of op's row `row` as f32, RMS-normalised when the op says so.
void LoadInput(const LinearOp& op, int64_t row, float* out);
// z [columns] holds groups of 8 gate and 8 up values; leaves silu(gate) * up in its first half.
// `columns`: multiple of 16.
void SiluMul(float* z, int64_t columns);

}  // namespace latchd::cpu
