#pragma once

#include "kernels/cuda/common/device.cuh"

// RMSNorm of one row by a whole block. The order of the sum depends on k alone: each of 512 threads
// adds its strided elements, then lanes, then warps. Whoever normalises a row (the decode matrix
// kernel for few rows, NormRows for many and for prefill) therefore gets the same bits.

namespace latchd::cuda {

inline constexpr int kNormThreads = 512;
inline constexpr int kNormWarps = kNormThreads / 32;

__device__ __forceinline__ float AddSquares(const float4& f, float sum) {
  return fmaf(f.x, f.x, fmaf(f.y, f.y, fmaf(f.z, f.z, fmaf(f.w, f.w, sum))));
}

// The sum of squares of this thread's elements of x [k], summed over its warp.
__device__ __forceinline__ float WarpSquares(const float* x, int k) {
  float sum = 0.0f;
  if (k % 4 == 0) {
    const float4* v = reinterpret_cast<const float4*>(x);
    for (int i = threadIdx.x; i < k / 4; i += kNormThreads) {
      sum = AddSquares(__ldcg(v + i), sum);
    }
  } else {
    for (int i = threadIdx.x; i < k; i += kNormThreads) {
      const float f = __ldcg(x + i);
      sum = fmaf(f, f, sum);
    }
  }
  return WarpSum(sum);
}

// 1 / sqrt(mean(x^2) + eps) from the sums of all warps.
__device__ __forceinline__ float InverseRms(const float* warp_squares, int k, float eps) {
  float sum = 0.0f;
#pragma unroll
  for (int w = 0; w < kNormWarps; ++w) sum += warp_squares[w];
  return rsqrtf(sum / static_cast<float>(k) + eps);
}

}  // namespace latchd::cuda
