#pragma once

#include "kernels/cuda/common/epilogue.cuh"
#include "kernels/cuda/common/packed_layout.h"
#include "kernels/cuda/ops_internal.h"

// What the two kernels of the 16-bit decode matrix product share: how the weight is cut.

namespace latchd::cuda {

inline constexpr int kLinearWarps = 16;
inline constexpr int kLinearThreads = kLinearWarps * 32;

struct LinearDecodeParams {
  const void* weight;  // packed
  const void* x;       // f32 or T, [rows, k]; T for LinearDecodeWide
  const float* norm_weight;
  float norm_eps;
  bool x_is_float;
  int32_t k;
  int32_t row_tiles;
  EpilogueParams epilogue;
};

// A block owns a run of row tiles; its warps split k, in pairs of units. The cut of k depends on k
// alone: it decides the order of a sum.
struct LinearShare {
  int first_tile, last_tile;
  int pairs;  // of the whole k
  int first_pair, own_pairs;
};
__device__ __forceinline__ LinearShare ShareOf(const LinearDecodeParams& p, int warp) {
  LinearShare s;
  s.first_tile = static_cast<int>(static_cast<int64_t>(p.row_tiles) * blockIdx.x / gridDim.x);
  s.last_tile = static_cast<int>(static_cast<int64_t>(p.row_tiles) * (blockIdx.x + 1) / gridDim.x);
  s.pairs = static_cast<int>(ColPairs(p.k));
  s.first_pair = s.pairs * warp / kLinearWarps;
  s.own_pairs = s.pairs * (warp + 1) / kLinearWarps - s.first_pair;
  return s;
}

// At most 64 rows of activations that are already T, any k.
OpStatus LinearDecodeWide(const LinearDecodeParams& p, DType dtype, OpStream stream);
OpStatus PrepareLinearDecodeWide();

}  // namespace latchd::cuda
