#include "kernels/cuda/common/device.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/ops_internal.h"

namespace latchd::cuda {
namespace {

constexpr int kWarps = 32;

// First entry of the slot's page table that the tokens [0, total) need and that is not a page of
// the pool, or -1. All lanes return the same.
__device__ int64_t FirstBadPage(const SlotTables& tables, int32_t slot, int64_t pages, int lane) {
  const int32_t* table = tables.page_table + static_cast<int64_t>(slot) * tables.max_pages;
  for (int64_t base = 0; base < pages; base += 32) {
    const int64_t p = base + lane;
    bool bad = false;
    if (p < pages) {
      const int32_t page = table[p];
      bad = page < 0 || page >= tables.pool_pages;
    }
    const unsigned vote = __ballot_sync(0xffffffffu, bad);
    if (vote != 0) return base + __ffs(static_cast<int>(vote)) - 1;
  }
  return -1;
}

__device__ Verdict Judge(const MetadataOp& op, const StepRow& row, int64_t position, int32_t token,
                         int lane) {
  const SlotTables& tables = op.tables;
  const int64_t capacity = tables.capacity[row.slot];
  const int64_t appended = (row.flags & kRowAttendOnly) != 0 ? 0 : 1;
  Verdict verdict =
      CheckLengths({row.seqlens_k, appended, 1, capacity, capacity, position, op.rotary_rows});
  const bool lengths_ok = verdict.mask == 0;
  if (op.vocab > 0 && (token < 0 || token >= op.vocab)) verdict.Fail(kTokenRange, token, op.vocab);
  if (!lengths_ok) return verdict;  // no range of pages to check
  const int64_t total = static_cast<int64_t>(row.seqlens_k) + 1;
  const int64_t pages = total == 0 ? 0 : ((total - 1) >> tables.page_shift) + 1;
  if (pages > tables.max_pages) {
    verdict.Fail(kPageTable, pages, tables.max_pages);
    return verdict;
  }
  const int64_t bad = FirstBadPage(tables, row.slot, pages, lane);
  if (bad >= 0) {
    verdict.Fail(kPageTable,
                 tables.page_table[static_cast<int64_t>(row.slot) * tables.max_pages + bad],
                 tables.pool_pages);
  }
  return verdict;
}

// One block, one warp a row, 32 rows a round. Rows that share a slot (a prompt's) must look as if
// judged in order: a violated row also stops the later rows of its slot, those of its own round by
// the table in shared memory, those of later rounds by the latch. A latch that the slots share is
// judged as it was before the call; its record is the first violated row's, in the order of rows.
__global__ void __launch_bounds__(kWarps * 32) MetadataKernel(MetadataOp op) {
  __shared__ int32_t round_slot[kWarps];
  __shared__ bool round_bad[kWarps];
  const bool shared_latch = op.tables.latch_stride == 0;
  const bool poisoned = shared_latch && op.tables.latch->mask != 0;
  bool recorded = false;  // an earlier round was the first to violate the shared latch
  __syncthreads();        // everyone has read the latch before anyone writes it
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int32_t base = 0; base < op.rows; base += kWarps) {
    const int32_t r = base + warp;
    StepRow row = {};
    row.slot = kInactive;
    if (r < op.rows) row = op.inputs[r];
    bool live = row.slot >= 0 && row.slot < op.tables.slots &&
                (shared_latch ? !poisoned : op.tables.latch[row.slot].mask == 0);
    Verdict verdict;
    int64_t position = 0;
    int32_t token = kInactive;
    if (live) {
      position = (row.flags & kRowExplicitPosition) != 0 ? row.position : row.seqlens_k;
      token = row.token == kTokenFromSlot ? op.tables.next_token[row.slot] : row.token;
      verdict = Judge(op, row, position, token, lane);
    }
    if (lane == 0) {
      round_slot[warp] = live ? row.slot : kInactive;
      round_bad[warp] = verdict.mask != 0;
    }
    __syncthreads();
    if (lane == 0 && r < op.rows) {
      for (int w = 0; live && !shared_latch && w < warp; ++w)
        live = !(round_bad[w] && round_slot[w] == row.slot);
      RowMeta meta = {kInactive, kInactive, kInactive, kInactive, kInactive, 0};
      if (live && verdict.mask != 0) {
        bool first = !recorded;
        for (int w = 0; shared_latch && w < warp; ++w) first = first && !round_bad[w];
        Latch& latch = op.tables.LatchOf(row.slot);
        atomicOr(&latch.mask, verdict.mask);
        if (first) {
          latch.first = verdict.first;
          latch.layer = -1;
          latch.row = r;
          latch.step = row.step;
          latch.value = verdict.value;
          latch.limit = verdict.limit;
        }
      } else if (live) {
        const int32_t appended = (row.flags & kRowAttendOnly) != 0 ? 0 : 1;
        meta = {row.slot,
                token,
                row.seqlens_k + 1 - appended,
                row.seqlens_k + 1,
                static_cast<int32_t>(position),
                row.flags};
      }
      op.meta[r] = meta;
    }
    for (int w = 0; shared_latch && w < kWarps; ++w) recorded = recorded || round_bad[w];
    __syncthreads();
  }
}

}  // namespace

OpStatus Metadata(const MetadataOp& op, OpStream stream) {
  if (op.rows <= 0) return OpStatus::Ok();
  return Launch("metadata", MetadataKernel, dim3(1), dim3(kWarps * 32), 0, stream,
                LaunchOrder::kOrdered, op);
}

OpStatus InitMetadata() { return Prepare("metadata", MetadataKernel); }

}  // namespace latchd::cuda
