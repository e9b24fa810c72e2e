#include <algorithm>
#include <string>

#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/gqa/decode_plan.cuh"
#include "kernels/cuda/gqa/decode_run.h"
#include "kernels/cuda/ops_internal.h"

namespace latchd::cuda {
namespace {

// SplitCount does not rise steadily with the length: 64 splits of 64 tokens hold 4096, one token
// more makes 33 splits of 128. The bound is that of the worst length up to max_total.
int MaxSplits(int max_total) {
  if (max_total >= kMaxSplits * kSplitTokens) return kMaxSplits;
  return SplitCount(std::max(max_total, 1));
}

}  // namespace

size_t AttentionDecodeWorkspaceBytes(const AttentionOp& op) {
  const size_t partials = static_cast<size_t>(op.rows) * static_cast<size_t>(op.q_heads) *
                          static_cast<size_t>(MaxSplits(op.max_total));
  return Align256(partials * sizeof(float2)) +
         partials * static_cast<size_t>(op.kv.head_dim) * sizeof(float);
}

OpStatus AttentionDecode(const AttentionOp& op, OpStream stream) {
  if (const size_t need = AttentionDecodeWorkspaceBytes(op); need > op.workspace_bytes) {
    return WorkspaceTooSmall("attention", need, op.workspace_bytes);
  }
  if (static_cast<int64_t>(op.rows) * op.q_heads > kMaxTickets) {
    return Unsupported("attention: rows * q_heads must be at most " + std::to_string(kMaxTickets) +
                       ", got " + std::to_string(static_cast<int64_t>(op.rows) * op.q_heads));
  }
  const int splits = MaxSplits(op.max_total);
  const size_t partials =
      static_cast<size_t>(op.rows) * static_cast<size_t>(op.q_heads) * static_cast<size_t>(splits);
  AttendParams p = {op, op.q_heads / op.kv.kv_heads, splits, splits, nullptr, nullptr};
  p.state = static_cast<float2*>(op.workspace);
  p.partial = reinterpret_cast<float*>(static_cast<char*>(op.workspace) +
                                       Align256(partials * sizeof(float2)));
  switch (op.kv.dtype) {
    case DType::kF32: return RunDecodeF32(p, stream);
    case DType::kF16: return RunDecodeF16(p, stream);
    case DType::kBF16: return RunDecodeBF16(p, stream);
  }
  return OpStatus::Ok();
}

OpStatus InitAttentionDecode() {
  if (OpStatus s = PrepareDecodeF32(); !s.ok()) return s;
  if (OpStatus s = PrepareDecodeF16(); !s.ok()) return s;
  return PrepareDecodeBF16();
}

}  // namespace latchd::cuda
