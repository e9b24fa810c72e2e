#include <string>

#include "kernels/cuda/common/device.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/ops_internal.h"

namespace latchd::cuda {
namespace {

constexpr int kWarps = 4;  // one warp a head of a row
constexpr int kMaxHeadDim = 1024;

// out [head_dim] = RoPE(RMSNorm(x)), element by element through `store(i, value)`.
template <typename Store>
__device__ __forceinline__ void PrepareHead(const AttentionPrepOp& op, const float* norm,
                                            int32_t position, const float* x, int lane,
                                            Store store) {
  const int d = op.kv.head_dim;
  float scale = 1.0f;
  if (norm != nullptr) {
    float sum = 0.0f;
    for (int i = lane; i < d; i += 32) {
      const float v = __ldcg(x + i);
      sum = fmaf(v, v, sum);
    }
    scale = rsqrtf(WarpSum(sum) / static_cast<float>(d) + op.norm_eps);
  }
  auto value = [&](int i) {
    return norm != nullptr ? __ldcg(x + i) * scale * norm[i] : __ldcg(x + i);
  };
  const int half = op.cos != nullptr ? op.rotary_dim / 2 : 0;
  const float* cos = op.cos + static_cast<int64_t>(position) * half;
  const float* sin = op.sin + static_cast<int64_t>(position) * half;
  for (int i = lane; i < half; i += 32) {
    const int first = op.rotary_interleaved ? 2 * i : i,
              second = op.rotary_interleaved ? 2 * i + 1 : i + half;
    const float a = value(first), b = value(second);
    store(first, a * cos[i] - b * sin[i]);
    store(second, b * cos[i] + a * sin[i]);
  }
  for (int i = 2 * half + lane; i < d; i += 32) store(i, value(i));
}

template <typename T>
__global__ void __launch_bounds__(kWarps * 32)
    AttentionPrepKernel(const __grid_constant__ AttentionPrepOp op) {
  // Before the wait, unlike everywhere else: AttentionDecode may then start while the projection
  // before this kernel still runs, and load keys. What it reads before its own wait is older than
  // both.
  AllowNext();
  WaitForPrevious();
  const int lane = threadIdx.x % 32, r = blockIdx.y;
  const int head = blockIdx.x * kWarps + threadIdx.x / 32;
  const int heads = op.q_heads + 2 * op.kv.kv_heads, d = op.kv.head_dim;
  if (head >= heads) return;
  const RowMeta meta = op.meta[r];
  if (meta.slot < 0) return;
  const float* x = op.qkv + (static_cast<size_t>(r) * heads + head) * d;
  if (head < op.q_heads) {
    if ((op.parts & kPrepQuery) == 0) return;
    float* q = op.q + (static_cast<size_t>(r) * op.q_heads + head) * d;
    PrepareHead(op, op.q_norm, meta.position, x, lane, [&](int i, float v) { q[i] = v; });
    return;
  }
  if ((meta.flags & kRowAttendOnly) != 0) return;
  const int kv_head = (head - op.q_heads) % op.kv.kv_heads;
  const size_t at = op.kv.Offset(meta.slot, kv_head, meta.past);
  if (head < op.q_heads + op.kv.kv_heads) {
    if ((op.parts & kPrepKey) == 0) return;
    T* key = static_cast<T*>(op.kv.key) + at;
    PrepareHead(op, op.k_norm, meta.position, x, lane,
                [&](int i, float v) { key[i] = Element<T>::From(v); });
  } else if ((op.parts & kPrepValue) != 0) {
    T* value = static_cast<T*>(op.kv.value) + at;
    for (int i = lane; i < d; i += 32) value[i] = Element<T>::From(__ldcg(x + i));
  }
}

}  // namespace

OpStatus AttentionPrep(const AttentionPrepOp& op, OpStream stream) {
  if (op.rows <= 0) return OpStatus::Ok();
  const int32_t d = op.kv.head_dim;
  if (d <= 0 || d > kMaxHeadDim) {
    return Invalid("attention_prep: head_dim must be 1.." + std::to_string(kMaxHeadDim) + ", got " +
                   std::to_string(d));
  }
  if (op.cos != nullptr && (op.rotary_dim < 2 || op.rotary_dim % 2 != 0 || op.rotary_dim > d)) {
    return Invalid("attention_prep: rotary_dim must be even and 2.." + std::to_string(d) +
                   ", got " + std::to_string(op.rotary_dim));
  }
  if (op.kv.kv_heads <= 0 || op.q_heads % op.kv.kv_heads != 0) {
    return Invalid("attention_prep: kv_heads " + std::to_string(op.kv.kv_heads) +
                   " must divide q_heads " + std::to_string(op.q_heads));
  }
  void (*kernel)(AttentionPrepOp) = nullptr;
  switch (op.kv.dtype) {
    case DType::kF32: kernel = AttentionPrepKernel<float>; break;
    case DType::kF16: kernel = AttentionPrepKernel<__half>; break;
    case DType::kBF16: kernel = AttentionPrepKernel<__nv_bfloat16>; break;
  }
  const int heads = op.q_heads + 2 * op.kv.kv_heads;
  return Launch(
      "attention prep", kernel,
      dim3(static_cast<unsigned>((heads + kWarps - 1) / kWarps), static_cast<unsigned>(op.rows)),
      dim3(kWarps * 32), 0, stream, LaunchOrder::kAfterPrevious, op);
}

OpStatus InitAttentionPrep() {
  if (OpStatus s = Prepare("attention prep f32", AttentionPrepKernel<float>); !s.ok()) return s;
  if (OpStatus s = Prepare("attention prep f16", AttentionPrepKernel<__half>); !s.ok()) return s;
  return Prepare("attention prep bf16", AttentionPrepKernel<__nv_bfloat16>);
}

}  // namespace latchd::cuda
