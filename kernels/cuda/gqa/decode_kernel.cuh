#pragma once

#include "kernels/cuda/common/epilogue.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/gqa/attend.cuh"

// Split-K decode attention: a block takes one split of one KV head of one row; the last block of a
// (row, KV head) to finish merges the splits in order. The grid is fixed by the shape; how many
// splits are active follows from the row's own length alone, so a row's bits do not depend on what
// else is in the batch.

namespace latchd::cuda {

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

template <typename T, int kTokenLanes, int kQueries>
struct DecodeTraits {
  static constexpr int kWarps = kQueries >= 8 ? 4 : 8;
  using Core = Attend<T, kTokenLanes, kQueries, kWarps>;
};

// Arrivals of a (row, KV head, query group), zero between launches: the last arrival resets it. Not
// in the workspace, which other ops may use in between.
static __device__ unsigned tickets[kMaxTickets];

template <typename T, int kTokenLanes, int kQueries>
__global__ void __launch_bounds__(DecodeTraits<T, kTokenLanes, kQueries>::kWarps * 32, 2)
    AttentionDecodeKernel(const __grid_constant__ AttendParams p) {
  using Core = typename DecodeTraits<T, kTokenLanes, kQueries>::Core;
  __shared__ typename Core::Shared shared;
  __shared__ float weights[kQueries][kMaxSplits];
  __shared__ bool last_arrival;
  const AttentionOp& op = p.op;
  const int groups = (p.group + kQueries - 1) / kQueries;
  const int split = blockIdx.x, kv_head = blockIdx.y / groups, r = blockIdx.z;
  const int head0 = blockIdx.y % groups * kQueries;  // within the KV head's group
  const int heads = min(kQueries, p.group - head0);
  const int d = op.kv.head_dim;

  // Before the wait: RowMeta, page table and all keys but the row's own. REQUIRES: the kernel before
  // this one wrote none of them (it is AttentionPrep, or a copy came between).
  const RowMeta meta = op.meta[r];
  const int first = op.window > 0 ? max(0, meta.total - op.window) : 0;
  const int length = meta.total - first;
  const int split_tokens = SplitLength(length), splits = SplitCount(length);
  if (meta.slot < 0 || split >= splits) {
    WaitForPrevious();
    return;
  }
  const int begin = first + split * split_tokens, end = min(meta.total, begin + split_tokens);
  const int own = meta.total - 1;
  Core core;
  core.Clear();
  core.Load(op.kv, meta.slot, kv_head, begin, end, [&](int token) { return token != own; });
  WaitForPrevious();
  AllowNext();
  core.Load(op.kv, meta.slot, kv_head, begin, end, [&](int token) { return token == own; });
  const int64_t q_head0 = static_cast<int64_t>(r) * op.q_heads + kv_head * p.group + head0;
  Core::LoadQueries(shared, d, op.scale, [&](int h) { return h < heads ? op.q + (q_head0 + h) * d : nullptr; });
  constexpr int kBatch = Core::kUnroll * Core::kTokensPerPass;
  for (int base = begin; base < end; base += kBatch) {
    if (base != begin) core.Load(op.kv, meta.slot, kv_head, base, end, [](int) { return true; });
    core.Compute(shared, base, op.softcap, [&](int, int token) { return token < end; });
  }
  core.Reduce(shared);

  for (int i = threadIdx.x; i < heads * d; i += Core::kThreads) {
    const int h = i / d, e = i % d;
    float sum;
    const SoftmaxState whole = Core::BlockSum(shared, h, e, &sum);
    if (splits == 1) {
      StoreAs(op.out_dtype, op.out, (q_head0 + h) * d + e, sum / whole.sum);
    } else {
      const int64_t at = (q_head0 + h) * p.max_splits + split;
      p.partial[at * d + e] = sum;
      if (e == 0) p.state[at] = make_float2(whole.max, whole.sum);
    }
  }
  if (splits == 1) return;

  __threadfence();
  __syncthreads();
  unsigned* ticket = tickets + r * gridDim.y + blockIdx.y;
  if (threadIdx.x == 0) {
    last_arrival = atomicAdd(ticket, 1u) == static_cast<unsigned>(splits - 1);
    if (last_arrival) *ticket = 0;
  }
  __syncthreads();
  if (!last_arrival) return;
  __threadfence();

  // Weights of the splits, one warp a query: exp(max_s - max) / sum.
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int h = warp; h < heads; h += Core::kThreads / 32) {
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
#pragma unroll
    for (int i = 0; i < kMaxSplits / 32; ++i) {
      weights[h][i * 32 + lane] = Rescale(mine[i].max, whole.max) / whole.sum;
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < heads * d; i += Core::kThreads) {
    const int h = i / d, e = i % d;
    const float* partial = p.partial + (q_head0 + h) * p.max_splits * d + e;
    float sum = 0.0f;
#pragma unroll 8
    for (int s = 0; s < splits; ++s) sum = fmaf(weights[h][s], __ldcg(partial + static_cast<int64_t>(s) * d), sum);
    StoreAs(op.out_dtype, op.out, (q_head0 + h) * d + e, sum);
  }
}

template <typename T, int kTokenLanes, int kQueries>
OpStatus LaunchDecodeKernel(const AttendParams& p, void* stream) {
  const int groups = (p.group + kQueries - 1) / kQueries;
  const dim3 grid(static_cast<unsigned>(p.max_splits), static_cast<unsigned>(p.op.kv.kv_heads * groups),
                  static_cast<unsigned>(p.op.rows));
  return Launch("attention decode", AttentionDecodeKernel<T, kTokenLanes, kQueries>, grid,
                dim3(DecodeTraits<T, kTokenLanes, kQueries>::kWarps * 32), 0, stream, LaunchOrder::kAfterPrevious, p);
}

template <typename T>
OpStatus RunDecode(const AttendParams& p, void* stream) {
  return ForTokenLanes(p.op.kv.head_dim, [&]<int kTokenLanes>() {
    if (p.group == 1) return LaunchDecodeKernel<T, kTokenLanes, 1>(p, stream);
    if (p.group <= 4) return LaunchDecodeKernel<T, kTokenLanes, 4>(p, stream);
    return LaunchDecodeKernel<T, kTokenLanes, 8>(p, stream);
  });
}

template <typename T>
OpStatus PrepareDecode() {
  for (int d : {32, 64, 128, 256}) {
    OpStatus status = ForTokenLanes(d, []<int kTokenLanes>() {
      if (OpStatus s = Prepare("attention decode", AttentionDecodeKernel<T, kTokenLanes, 1>); !s.ok()) return s;
      if (OpStatus s = Prepare("attention decode", AttentionDecodeKernel<T, kTokenLanes, 4>); !s.ok()) return s;
      return Prepare("attention decode", AttentionDecodeKernel<T, kTokenLanes, 8>);
    });
    if (!status.ok()) return status;
  }
  return OpStatus::Ok();
}

// One per dtype, in a file each, so that they compile side by side.
OpStatus RunDecodeF32(const AttendParams& p, void* stream);
OpStatus RunDecodeF16(const AttendParams& p, void* stream);
OpStatus RunDecodeBF16(const AttendParams& p, void* stream);
OpStatus PrepareDecodeF32();
OpStatus PrepareDecodeF16();
OpStatus PrepareDecodeBF16();

}  // namespace latchd::cuda
