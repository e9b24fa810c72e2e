#include <cmath>

#include "kernels/api/convert.h"
#include "kernels/cpu/ops_internal.h"
#include "kernels/cpu/parallel.h"

namespace latchd::cpu {
namespace {

// RMSNorm of one head (Qwen3 normalises each head of q and k on its own).
void NormHead(const float* x, const float* weight, float eps, int32_t head_dim, float* out) {
  // Eight partial sums, because one alone would wait for each addition before the next.
  constexpr int32_t kLanes = 8;
  float sums[kLanes] = {};
  int32_t whole = 0;
  for (; whole + kLanes <= head_dim; whole += kLanes) {
    for (int32_t l = 0; l < kLanes; ++l) sums[l] += x[whole + l] * x[whole + l];
  }
  float sum = 0.0f;
  for (float partial : sums) sum += partial;
  for (int32_t i = whole; i < head_dim; ++i) sum += x[i] * x[i];
  const float scale = 1.0f / std::sqrt(sum / static_cast<float>(head_dim) + eps);
  for (int32_t i = 0; i < head_dim; ++i) out[i] = x[i] * scale * weight[i];
}

// Rotates the first rotary_dim elements in place; the rest passes through.
void Rotate(const AttentionPrepOp& op, int32_t position, float* x) {
  const int32_t half = op.rotary_dim / 2;
  const float* cos = op.cos + static_cast<size_t>(position) * half;
  const float* sin = op.sin + static_cast<size_t>(position) * half;
  const int32_t pair_step = op.rotary_interleaved ? 2 : 1;
  const int32_t partner = op.rotary_interleaved ? 1 : half;
  for (int32_t i = 0; i < half; ++i) {
    float& a = x[i * pair_step];
    float& b = x[i * pair_step + partner];
    const float rotated_a = a * cos[i] - b * sin[i];
    const float rotated_b = b * cos[i] + a * sin[i];
    a = rotated_a;
    b = rotated_b;
  }
}

// out [head_dim] = RoPE(RMSNorm(x)).
void PrepareHead(const AttentionPrepOp& op, const float* norm, int32_t position, const float* x,
                 float* out) {
  const int32_t head_dim = op.kv.head_dim;
  if (norm != nullptr) {
    NormHead(x, norm, op.norm_eps, head_dim, out);
  } else {
    std::memcpy(out, x, static_cast<size_t>(head_dim) * sizeof(float));
  }
  if (op.cos != nullptr) Rotate(op, position, out);
}

constexpr int32_t kMaxHeadDim = 1024;  // of the stack buffer below; models use 32..256

void PrepareRow(const AttentionPrepOp& op, int64_t r) {
  const RowMeta& meta = op.meta[r];
  if (meta.slot < 0) return;
  const KvView& kv = op.kv;
  const size_t head_dim = static_cast<size_t>(kv.head_dim);
  const size_t element = SizeOf(kv.dtype);
  const size_t heads = static_cast<size_t>(op.q_heads) + 2 * static_cast<size_t>(kv.kv_heads);
  const float* q = op.qkv + static_cast<size_t>(r) * heads * head_dim;
  const float* k = q + static_cast<size_t>(op.q_heads) * head_dim;
  const float* v = k + static_cast<size_t>(kv.kv_heads) * head_dim;
  float* q_out = op.q + static_cast<size_t>(r) * static_cast<size_t>(op.q_heads) * head_dim;

  for (int32_t h = 0; (op.parts & kPrepQuery) != 0 && h < op.q_heads; ++h) {
    PrepareHead(op, op.q_norm, meta.position, q + h * head_dim, q_out + h * head_dim);
  }
  if ((meta.flags & kRowAttendOnly) != 0) return;
  // Keys are rotated in f32 and rounded once, when they enter the cache.
  float rotated[kMaxHeadDim];
  for (int32_t h = 0; h < kv.kv_heads; ++h) {
    const size_t at = kv.Offset(meta.slot, h, meta.past) * element;
    if ((op.parts & kPrepKey) != 0) {
      PrepareHead(op, op.k_norm, meta.position, k + h * head_dim, rotated);
      ConvertFromF32(kv.dtype, rotated, static_cast<char*>(kv.key) + at, head_dim);
    }
    if ((op.parts & kPrepValue) != 0) {
      ConvertFromF32(kv.dtype, v + h * head_dim, static_cast<char*>(kv.value) + at, head_dim);
    }
  }
}

}  // namespace

OpStatus AttentionPrep(const AttentionPrepOp& op, OpStream) {
  const int32_t head_dim = op.kv.head_dim;
  if (head_dim <= 0 || head_dim > kMaxHeadDim) {
    return Invalid("attention_prep: head_dim must be 1.." + std::to_string(kMaxHeadDim) + ", got " +
                   std::to_string(head_dim));
  }
  if (op.cos != nullptr &&
      (op.rotary_dim < 2 || op.rotary_dim % 2 != 0 || op.rotary_dim > head_dim)) {
    return Invalid("attention_prep: rotary_dim must be even and 2.." + std::to_string(head_dim) +
                   ", got " + std::to_string(op.rotary_dim));
  }
  if (op.kv.kv_heads <= 0 || op.q_heads % op.kv.kv_heads != 0) {
    return Invalid("attention_prep: kv_heads " + std::to_string(op.kv.kv_heads) +
                   " must divide q_heads " + std::to_string(op.q_heads));
  }
  const int64_t row_bytes = int64_t{4} * (op.q_heads + 2 * op.kv.kv_heads) * head_dim;
  ParallelRanges(op.rows, op.rows * row_bytes, MaxThreads(), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) PrepareRow(op, r);
  });
  return OpStatus::Ok();
}

}  // namespace latchd::cpu
