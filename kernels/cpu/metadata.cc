#include "kernels/cpu/ops_internal.h"

namespace latchd::cpu {
namespace {

constexpr RowMeta kSkipped = {kInactive, kInactive, kInactive, kInactive, kInactive, 0};

// The pages of one slot that earlier rows of this call have checked: a prompt's rows share them,
// and without this a chunk would look at every page once per row.
struct CheckedPages {
  int32_t slot = kInactive;
  int64_t pages = 0;
};

// Judges the table entries of the pages that cover [0, total). REQUIRES: total passed CheckLengths.
void CheckPages(const SlotTables& tables, int32_t slot, int64_t total, CheckedPages& checked,
                Verdict& verdict) {
  if (checked.slot != slot) checked = {slot, 0};
  const int64_t pages = total == 0 ? 0 : ((total - 1) >> tables.page_shift) + 1;
  if (pages > tables.max_pages) {
    verdict.Fail(kPageTable, pages, tables.max_pages);
    return;
  }
  for (int64_t p = checked.pages; p < pages; ++p) {
    const int32_t page = tables.page_table[static_cast<int64_t>(slot) * tables.max_pages + p];
    if (page < 0 || page >= tables.pool_pages) {
      verdict.Fail(kPageTable, page, tables.pool_pages);
      return;
    }
    checked.pages = p + 1;
  }
}

// Judges one row and latches what it finds. The order of the checks decides which violation is the
// first.
RowMeta Resolve(const MetadataOp& op, const StepRow& row, int32_t row_index, bool poisoned,
                CheckedPages& checked) {
  const SlotTables& tables = op.tables;
  if (row.slot < 0 || row.slot >= tables.slots) return kSkipped;
  Latch& latch = tables.LatchOf(row.slot);
  // Sticky: a latch of the slot's own also skips the later rows of a prompt.
  if (tables.latch_stride == 0 ? poisoned : latch.mask != 0) return kSkipped;

  const int32_t appended = (row.flags & kRowAttendOnly) != 0 ? 0 : 1;
  const int64_t total = static_cast<int64_t>(row.seqlens_k) + 1;
  const int64_t query_start = total - 1;
  const int64_t position = (row.flags & kRowExplicitPosition) != 0 ? row.position : query_start;
  Verdict verdict = CheckLengths({.seqlens_k = row.seqlens_k,
                                  .k_sequence = appended,
                                  .q_sequence = 1,
                                  .past_capacity = tables.capacity[row.slot],
                                  .present_capacity = tables.capacity[row.slot],
                                  .first_position = position,
                                  .rotary_rows = op.rotary_rows});
  const bool lengths_ok = verdict.mask == 0;
  const int32_t token = row.token == kTokenFromSlot ? tables.next_token[row.slot] : row.token;
  if (op.vocab > 0 && (token < 0 || token >= op.vocab)) verdict.Fail(kTokenRange, token, op.vocab);
  // With a bad length there is no range of pages to check.
  if (lengths_ok) CheckPages(tables, row.slot, total, checked, verdict);

  if (verdict.mask != 0) {
    if (latch.mask != 0) {  // shared: an earlier row of this call was the first
      latch.mask |= verdict.mask;
      return kSkipped;
    }
    latch = {.mask = verdict.mask,
             .first = verdict.first,
             .layer = -1,
             .row = row_index,
             .step = row.step,
             .value = verdict.value,
             .limit = verdict.limit};
    return kSkipped;
  }
  return {.slot = row.slot,
          .token = token,
          .past = row.seqlens_k + 1 - appended,
          .total = row.seqlens_k + 1,
          .position = static_cast<int32_t>(position),
          .flags = row.flags};
}

}  // namespace

// Rows are judged in order, because several may share a slot and the first violation stops the
// rest.
OpStatus Metadata(const MetadataOp& op, OpStream) {
  CheckedPages checked;
  const bool poisoned = op.tables.latch_stride == 0 && op.tables.latch->mask != 0;
  for (int32_t r = 0; r < op.rows; ++r) {
    op.meta[r] = Resolve(op, op.inputs[r], r, poisoned, checked);
  }
  return OpStatus::Ok();
}

}  // namespace latchd::cpu
