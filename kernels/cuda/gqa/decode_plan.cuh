#pragma once

#include "kernels/api/ops.h"
#include "kernels/cuda/common/device.cuh"
#include "kernels/cuda/common/epilogue.cuh"
#include "kernels/cuda/gqa/softmax_state.cuh"

// What the two decode attention kernels share: how a row's keys are cut into splits, and how the
// splits of one KV head are merged. Both follow from the row's own length alone, so a row's bits do
// not depend on what else is in the batch; how many splits a block takes does not matter to them.

namespace latchd::cuda {

struct AttendParams {
  AttentionOp op;
  int32_t group;         // q heads a KV head
  int32_t max_splits;    // bound on the splits, from max_total
  int32_t split_blocks;  // blocks that share the splits of one KV head of one row
  float* partial;        // [rows, q_heads, max_splits, head_dim]
  float2* state;         // [rows, q_heads, max_splits] {max, sum}
};

inline constexpr int kSplitTokens = 64;
inline constexpr int kMaxSplits = 64;
inline constexpr int kMaxTickets = 1 << 16;

__host__ __device__ inline int SplitLength(int length) {
  const int even = (length + kMaxSplits - 1) / kMaxSplits;
  const int rounded = (even + kSplitTokens - 1) / kSplitTokens * kSplitTokens;
  return rounded < kSplitTokens ? kSplitTokens : rounded;
}
__host__ __device__ inline int SplitCount(int length) {
  const int tokens = SplitLength(length);
  return (length + tokens - 1) / tokens;
}

// Arrivals of a (row, KV head, query group), zero between launches: the last arrival resets it. Not
// in the workspace, which other ops may use in between.
static __device__ unsigned tickets[kMaxTickets];

// Whether this block is the last of `arrivals` that share `ticket`; then it sees what the others
// wrote before. All threads; ends with a barrier.
__device__ __forceinline__ bool LastArrival(unsigned* ticket, int arrivals, bool* last) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    *last = atomicAdd(ticket, 1u) == static_cast<unsigned>(arrivals - 1);
    if (*last) *ticket = 0;
  }
  __syncthreads();
  if (*last) __threadfence();
  return *last;
}

// Merges the splits of q heads q_head0 .. q_head0 + heads - 1 (indices over all rows) in order and
// stores them.
template <int kThreads, int kQueries>
__device__ __forceinline__ void MergeSplits(const AttendParams& p, int64_t q_head0, int heads,
                                            int splits, float (&weights)[kQueries][kMaxSplits]) {
  // One warp a query: a split's weight is exp(max_s - max) / sum.
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int h = warp; h < heads; h += kThreads / 32) {
    const float2* states = p.state + (q_head0 + h) * p.max_splits;
    SoftmaxState whole = EmptySoftmax(), mine[kMaxSplits / 32];
#pragma unroll
    for (int i = 0; i < kMaxSplits / 32; ++i) {
      const int s = i * 32 + lane;
      mine[i] = EmptySoftmax();
      if (s < splits) {
        const float2 v = __ldcg(states + s);
        mine[i] = {v.x, v.y};
      }
      Merge(whole, mine[i]);
    }
#pragma unroll
    for (int w = 16; w > 0; w /= 2) {
      const SoftmaxState other = {__shfl_xor_sync(0xffffffffu, whole.max, w),
                                  __shfl_xor_sync(0xffffffffu, whole.sum, w)};
      Merge(whole, other);
    }
    const float denominator =
        Denominator(whole, p.op.head_sink, static_cast<int>((q_head0 + h) % p.op.q_heads));
#pragma unroll
    for (int i = 0; i < kMaxSplits / 32; ++i) {
      weights[h][i * 32 + lane] = Rescale(mine[i].max, whole.max) / denominator;
    }
  }
  __syncthreads();
  const int d = p.op.kv.head_dim, quads = d / 4;
  for (int i = threadIdx.x; i < heads * quads; i += kThreads) {
    const int h = i / quads, e = i % quads * 4;
    const float* partial = p.partial + (q_head0 + h) * p.max_splits * d + e;
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
    for (int s = 0; s < splits; ++s) {
      const float4 v =
          __ldcg(reinterpret_cast<const float4*>(partial + static_cast<int64_t>(s) * d));
      const float w = weights[h][s];
      sum = make_float4(fmaf(w, v.x, sum.x), fmaf(w, v.y, sum.y), fmaf(w, v.z, sum.z),
                        fmaf(w, v.w, sum.w));
    }
    const int64_t at = (q_head0 + h) * d + e;
    StoreAs(p.op.out_dtype, p.op.out, at, sum.x);
    StoreAs(p.op.out_dtype, p.op.out, at + 1, sum.y);
    StoreAs(p.op.out_dtype, p.op.out, at + 2, sum.z);
    StoreAs(p.op.out_dtype, p.op.out, at + 3, sum.w);
  }
}

}  // namespace latchd::cuda
