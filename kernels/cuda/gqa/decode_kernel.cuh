#pragma once

#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/gqa/attend.cuh"
#include "kernels/cuda/gqa/decode_plan.cuh"

// Split-K decode attention in plain f32 arithmetic, for f32 caches: a block takes one split of one
// KV head of one row; the last block of a (row, KV head) to finish merges the splits in order.

namespace latchd::cuda {

template <typename T, int kTokenLanes, int kQueries>
struct DecodeTraits {
  static constexpr int kWarps = kQueries >= 8 ? 4 : 8;
  using Core = Attend<T, kTokenLanes, kQueries, kWarps>;
};

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

  // Before the wait: RowMeta, page table and all keys but the row's own. REQUIRES: the kernel
  // before this one wrote none of them (it is AttentionPrep, or a copy came between).
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
  Core::LoadQueries(shared, d, op.scale,
                    [&](int h) { return h < heads ? op.q + (q_head0 + h) * d : nullptr; });
  constexpr int kBatch = Core::kUnroll * Core::kTokensPerPass;
  for (int base = begin; base < end; base += kBatch) {
    if (base != begin) core.Load(op.kv, meta.slot, kv_head, base, end, [](int) { return true; });
    core.Compute(
        shared, base, op.softcap, [&](int h, int token) { return h < heads && token < end; },
        [&](int h, int token) { return BiasOf(op, r, kv_head * p.group + head0 + h, token); });
  }
  core.Reduce(shared);

  for (int i = threadIdx.x; i < heads * d; i += Core::kThreads) {
    const int h = i / d, e = i % d;
    float sum;
    const SoftmaxState whole = Core::BlockSum(shared, h, e, &sum);
    if (splits == 1) {
      StoreAs(op.out_dtype, op.out, (q_head0 + h) * d + e,
              sum / Denominator(whole, op.head_sink, kv_head * p.group + head0 + h));
    } else {
      const int64_t at = (q_head0 + h) * p.max_splits + split;
      p.partial[at * d + e] = sum;
      if (e == 0) p.state[at] = make_float2(whole.max, whole.sum);
    }
  }
  if (splits == 1) return;

  unsigned* ticket = tickets + r * gridDim.y + blockIdx.y;
  if (LastArrival(ticket, splits, &last_arrival))
    MergeSplits<Core::kThreads>(p, q_head0, heads, splits, weights);
}

template <typename T, int kTokenLanes, int kQueries>
OpStatus LaunchDecodeKernel(const AttendParams& p, void* stream) {
  const int groups = (p.group + kQueries - 1) / kQueries;
  const dim3 grid(static_cast<unsigned>(p.max_splits),
                  static_cast<unsigned>(p.op.kv.kv_heads * groups),
                  static_cast<unsigned>(p.op.rows));
  return Launch("attention decode", AttentionDecodeKernel<T, kTokenLanes, kQueries>, grid,
                dim3(DecodeTraits<T, kTokenLanes, kQueries>::kWarps * 32), 0, stream,
                LaunchOrder::kAfterPrevious, p);
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
      if (OpStatus s = Prepare("attention decode", AttentionDecodeKernel<T, kTokenLanes, 1>);
          !s.ok())
        return s;
      if (OpStatus s = Prepare("attention decode", AttentionDecodeKernel<T, kTokenLanes, 4>);
          !s.ok())
        return s;
      return Prepare("attention decode", AttentionDecodeKernel<T, kTokenLanes, 8>);
    });
    if (!status.ok()) return status;
  }
  return OpStatus::Ok();
}

}  // namespace latchd::cuda
