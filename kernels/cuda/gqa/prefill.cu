#include <algorithm>

#include "kernels/cuda/common/epilogue.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/gqa/attend.cuh"
#include "kernels/cuda/ops_internal.h"

// Prefill attention: consecutive tokens of one slot. A block takes up to 8 query vectors of one KV
// head, the heads of a group times as many rows as fit, and runs once over the keys they see.

namespace latchd::cuda {
namespace {

constexpr int kQueries = 8;
constexpr int kWarps = 4;

struct PrefillParams {
  AttentionOp op;
  int32_t group;
  int32_t block_heads;  // q heads of the group a block takes
  int32_t block_rows;
};

template <typename T, int kTokenLanes>
__global__ void __launch_bounds__(kWarps * 32)
    AttentionPrefillKernel(const __grid_constant__ PrefillParams p) {
  using Core = Attend<T, kTokenLanes, kQueries, kWarps>;
  __shared__ typename Core::Shared shared;
  __shared__ int32_t first_key[kQueries], total_keys[kQueries];
  WaitForPrevious();
  AllowNext();
  const AttentionOp& op = p.op;
  const int chunks = (p.group + p.block_heads - 1) / p.block_heads;
  const int kv_head = blockIdx.y / chunks, head0 = blockIdx.y % chunks * p.block_heads;
  const int row0 = blockIdx.x * p.block_rows, d = op.kv.head_dim;

  // Query i of the block: row row0 + i / block_heads, head head0 + i % block_heads of the group.
  auto row_of = [&](int i) { return row0 + i / p.block_heads; };
  auto head_of = [&](int i) { return head0 + i % p.block_heads; };
  if (threadIdx.x < kQueries) {
    const int i = threadIdx.x;
    int total = 0;
    if (i < p.block_heads * p.block_rows && row_of(i) < op.rows && head_of(i) < p.group) {
      const RowMeta meta = op.meta[row_of(i)];
      if (meta.slot >= 0) total = meta.total;
    }
    total_keys[i] = total;
    first_key[i] = op.window > 0 ? max(0, total - op.window) : 0;
  }
  __syncthreads();
  int begin = INT32_MAX, end = 0, slot = -1;
  for (int i = 0; i < kQueries; ++i) {
    if (total_keys[i] == 0) continue;
    begin = min(begin, first_key[i]);
    end = max(end, total_keys[i]);
    slot = op.meta[row_of(i)].slot;
  }
  if (slot < 0) return;

  Core core;
  core.Clear();
  Core::LoadQueries(shared, d, op.scale, [&](int i) -> const float* {
    if (total_keys[i] == 0) return nullptr;
    return op.q +
           (static_cast<int64_t>(row_of(i)) * op.q_heads + kv_head * p.group + head_of(i)) * d;
  });
  for (int base = begin; base < end; base += Core::kUnroll * Core::kTokensPerPass) {
    core.Load(op.kv, slot, kv_head, base, end, [](int) { return true; });
    core.Compute(
        shared, base, op.softcap,
        [&](int i, int token) { return token >= first_key[i] && token < total_keys[i]; },
        [&](int i, int token) {
          return BiasOf(op, row_of(i), kv_head * p.group + head_of(i), token);
        });
  }
  core.Reduce(shared);
  for (int j = threadIdx.x; j < kQueries * d; j += Core::kThreads) {
    const int i = j / d, e = j % d;
    if (total_keys[i] == 0) continue;
    float sum;
    const SoftmaxState whole = Core::BlockSum(shared, i, e, &sum);
    const int q_head = kv_head * p.group + head_of(i);
    const int64_t head = static_cast<int64_t>(row_of(i)) * op.q_heads + q_head;
    StoreAs(op.out_dtype, op.out, head * d + e, sum / Denominator(whole, op.head_sink, q_head));
  }
}

template <typename T>
OpStatus Run(const PrefillParams& p, OpStream stream) {
  return ForTokenLanes(p.op.kv.head_dim, [&]<int kTokenLanes>() {
    const int chunks = (p.group + p.block_heads - 1) / p.block_heads;
    const dim3 grid(static_cast<unsigned>((p.op.rows + p.block_rows - 1) / p.block_rows),
                    static_cast<unsigned>(p.op.kv.kv_heads * chunks));
    return Launch("attention prefill", AttentionPrefillKernel<T, kTokenLanes>, grid,
                  dim3(kWarps * 32), 0, stream, LaunchOrder::kAfterPrevious, p);
  });
}

template <typename T>
OpStatus PrepareAll() {
  for (const OpStatus& s : {Prepare("attention prefill", AttentionPrefillKernel<T, 4>),
                            Prepare("attention prefill", AttentionPrefillKernel<T, 8>),
                            Prepare("attention prefill", AttentionPrefillKernel<T, 16>),
                            Prepare("attention prefill", AttentionPrefillKernel<T, 32>)}) {
    if (!s.ok()) return s;
  }
  return OpStatus::Ok();
}

}  // namespace

OpStatus AttentionPrefill(const AttentionOp& op, OpStream stream) {
  PrefillParams p = {op, op.q_heads / op.kv.kv_heads, 0, 0};
  p.block_heads = std::min(p.group, kQueries);
  p.block_rows = kQueries / p.block_heads;
  switch (op.kv.dtype) {
    case DType::kF32: return Run<float>(p, stream);
    case DType::kF16: return Run<__half>(p, stream);
    case DType::kBF16: return Run<__nv_bfloat16>(p, stream);
  }
  return OpStatus::Ok();
}

OpStatus InitAttentionPrefill() {
  if (OpStatus s = PrepareAll<float>(); !s.ok()) return s;
  if (OpStatus s = PrepareAll<__half>(); !s.ok()) return s;
  return PrepareAll<__nv_bfloat16>();
}

}  // namespace latchd::cuda
