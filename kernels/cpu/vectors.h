#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/api/dtype.h"

namespace latchd::cpu {

// out[r * out_stride + j] = dot(x row r, w row j) over k elements; x is f32, w of `dtype`; strides
// in elements. A weight is loaded and converted once for up to 8 rows. Each dot product adds in the
// order of k into its own accumulator, so it does not depend on how many rows or columns there are,
// bit for bit. Keep `columns` so small that their weights stay in the L1 cache while groups of rows
// pass over them.
void Dot(DType dtype, const float* x, int64_t x_stride, int64_t rows, const void* w,
         int64_t w_stride, int64_t columns, int64_t k, float* out, int64_t out_stride);

// out [count] = source as f32.
void Widen(DType dtype, const void* source, float* out, size_t count);

}  // namespace latchd::cpu
