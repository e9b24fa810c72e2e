#include "kernels/api/convert.h"
#include "kernels/cpu/attention_internal.h"
#include "kernels/cpu/ops_internal.h"
#include "kernels/cpu/parallel.h"

namespace latchd::cpu {
namespace {

constexpr int32_t kMaxGroup = 128;  // of the stack buffer in Decode
constexpr int32_t kMaxHeadDim = 1024;

OpStatus Check(const AttentionOp& op) {
  const KvView& kv = op.kv;
  if (kv.head_dim <= 0 || kv.head_dim > kMaxHeadDim) {
    return Invalid("attention: head_dim must be 1.." + std::to_string(kMaxHeadDim) + ", got " +
                   std::to_string(kv.head_dim));
  }
  if (kv.kv_heads <= 0 || op.q_heads <= 0 || op.q_heads % kv.kv_heads != 0 ||
      op.q_heads / kv.kv_heads > kMaxGroup) {
    return Invalid("attention: kv_heads " + std::to_string(kv.kv_heads) + " must divide q_heads " +
                   std::to_string(op.q_heads) + " into groups of at most " +
                   std::to_string(kMaxGroup));
  }
  for (int32_t r = 0; r < op.rows; ++r) {
    if (op.meta[r].slot >= 0 && op.meta[r].total > op.max_total) {
      return Invalid("attention: total " + std::to_string(op.meta[r].total) + " of row " +
                     std::to_string(r) + " exceeds max_total " + std::to_string(op.max_total));
    }
  }
  return OpStatus::Ok();
}

// Decode workspace: for each (row, q head, split) a Partial, then all accumulators.
int64_t DecodePartials(const AttentionOp& op) {
  return int64_t{op.rows} * op.q_heads * MaxSplitsFor(op.max_total);
}
size_t PartialBytes(const AttentionOp& op) {
  return Align64(static_cast<size_t>(DecodePartials(op)) * sizeof(Partial));
}
size_t DecodeBytes(const AttentionOp& op) {
  return PartialBytes(op) +
         static_cast<size_t>(DecodePartials(op) * op.kv.head_dim) * sizeof(float);
}
size_t TileBytes(const AttentionOp& op) {
  return Align64(static_cast<size_t>(PrefillTileFloats(op)) * sizeof(float));
}

// Adds up the splits of one query head in order, and writes the row's output.
void Finish(const AttentionOp& op, int64_t row, int32_t q_head, Partial* partials, int32_t splits) {
  const int32_t head_dim = op.kv.head_dim;
  Partial& whole = partials[0];
  for (int32_t s = 1; s < splits; ++s) {
    const MergeScales scales = Merge(whole.state, partials[s].state);
    MergeVector(whole.acc, scales.into, partials[s].acc, scales.from, head_dim);
  }
  ScaleVector(whole.acc, head_dim, OutputScale(whole.state, SinkOf(op, q_head)));
  const size_t at =
      (static_cast<size_t>(row) * op.q_heads + static_cast<size_t>(q_head)) * head_dim;
  ConvertFromF32(op.out_dtype, whole.acc, static_cast<char*>(op.out) + at * SizeOf(op.out_dtype),
                 static_cast<size_t>(head_dim));
}

// Split-K: first every (row, KV head, split) on its own, then the splits of each query head in a
// fixed order.
// Items are taken in any order by any thread; what they add up is fixed by each row's own length.
void Decode(const AttentionOp& op) {
  const KvView& kv = op.kv;
  const int32_t group = op.q_heads / kv.kv_heads;
  const int32_t bound = MaxSplitsFor(op.max_total);
  auto* partials = static_cast<Partial*>(op.workspace);
  auto* accumulators =
      reinterpret_cast<float*>(static_cast<char*>(op.workspace) + PartialBytes(op));
  const auto plan_of = [&](int64_t row) {
    const int32_t total = op.meta[row].total;
    return PlanSplits(FirstKey(op, total), total);
  };

  int32_t splits = 0;
  int64_t tokens = 0;
  for (int32_t r = 0; r < op.rows; ++r) {
    if (op.meta[r].slot < 0) continue;
    const SplitPlan plan = plan_of(r);
    splits = std::max(splits, plan.splits);
    tokens += int64_t{plan.splits} * plan.tokens;
  }
  const int64_t bytes =
      tokens * kv.kv_heads * kv.head_dim * 2 * static_cast<int64_t>(SizeOf(kv.dtype));
  const int threads = MaxThreads();
  // Splits vary slowest: rows with fewer splits leave their gaps at the end, where they cost
  // nothing.
  ParallelItems(int64_t{splits} * op.rows * kv.kv_heads, bytes, threads, [&](int64_t item, int) {
    const int32_t kv_head = static_cast<int32_t>(item % kv.kv_heads);
    const int64_t row = item / kv.kv_heads % op.rows;
    const int32_t split = static_cast<int32_t>(item / kv.kv_heads / op.rows);
    if (op.meta[row].slot < 0) return;
    const SplitPlan plan = plan_of(row);
    if (split >= plan.splits) return;
    const int32_t begin = plan.first + split * plan.tokens;
    const int32_t end = std::min(op.meta[row].total, begin + plan.tokens);
    Partial results[kMaxGroup];
    const int64_t first_head = row * op.q_heads + int64_t{kv_head} * group;
    for (int32_t h = 0; h < group; ++h) {
      results[h].acc = accumulators + ((first_head + h) * bound + split) * kv.head_dim;
    }
    AttendSplit(op, row, kv_head, begin, end, results);
    for (int32_t h = 0; h < group; ++h) partials[(first_head + h) * bound + split] = results[h];
  });
  const int64_t heads = int64_t{op.rows} * op.q_heads;
  ParallelRanges(heads, heads * splits * kv.head_dim * 4, threads,
                 [&](int64_t begin, int64_t end, int) {
                   for (int64_t i = begin; i < end; ++i) {
                     const int64_t row = i / op.q_heads;
                     if (op.meta[row].slot < 0) continue;
                     Finish(op, row, static_cast<int32_t>(i % op.q_heads), partials + i * bound,
                            plan_of(row).splits);
                   }
                 });
}

}  // namespace

size_t AttentionWorkspaceBytes(const AttentionOp& op) {
  if (op.phase == Phase::kDecode) return DecodeBytes(op);
  return static_cast<size_t>(MaxThreads()) * TileBytes(op);
}

OpStatus Attention(const AttentionOp& op, OpStream) {
  if (OpStatus status = Check(op); !status.ok()) return status;
  const size_t needed = op.phase == Phase::kDecode ? DecodeBytes(op) : TileBytes(op);
  if (op.workspace_bytes < needed)
    return WorkspaceTooSmall("attention", needed, op.workspace_bytes);
  if (op.phase == Phase::kDecode) {
    Decode(op);
  } else {
    const size_t slots =
        std::min<size_t>(op.workspace_bytes / TileBytes(op), static_cast<size_t>(MaxThreads()));
    AttentionPrefill(op, static_cast<float*>(op.workspace), static_cast<int>(slots));
  }
  return OpStatus::Ok();
}

}  // namespace latchd::cpu
