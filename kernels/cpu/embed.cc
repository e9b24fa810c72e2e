#include "kernels/api/convert.h"
#include "kernels/cpu/ops_internal.h"
#include "kernels/cpu/parallel.h"

namespace latchd::cpu {

// The history entry is written here, and not by the sampler, because only now is the token part of
// the sequence: a sampled token that is never appended must not count for the penalties.
OpStatus Embed(const EmbedOp& op, OpStream) {
  const size_t hidden = static_cast<size_t>(op.table.k);
  const size_t row_bytes = hidden * SizeOf(op.table.dtype);
  const auto* table = static_cast<const char*>(op.table.data);
  ParallelRanges(op.rows, op.rows * static_cast<int64_t>(row_bytes), MaxThreads(),
                 [&](int64_t begin, int64_t end, int) {
                   for (int64_t r = begin; r < end; ++r) {
                     const RowMeta& meta = op.meta[r];
                     if (meta.slot < 0) continue;
                     ConvertToF32(op.table.dtype,
                                  table + static_cast<size_t>(meta.token) * row_bytes,
                                  op.out + static_cast<size_t>(r) * hidden, hidden);
                     const int32_t origin = (meta.flags & kRowPrompt) != 0 ? kPromptBit : 0;
                     *op.tables.History(meta.slot, meta.past) = meta.token | origin;
                   }
                 });
  return OpStatus::Ok();
}

}  // namespace latchd::cpu
