#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/api/kv_view.h"
#include "kernels/api/step_tables.h"
#include "runtime/device/device.h"
#include "runtime/kv/page_pool.h"

namespace latchd {

inline constexpr int32_t kPageShift = 6;
inline constexpr int32_t kPageTokens = 1 << kPageShift;

struct KvLayout {
  int32_t layers = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  DType dtype = DType::kF32;
  int32_t slots = 0;                // sessions, plus the scratch slot
  int32_t pool_pages = 0;           // of all slots, the scratch slot's page included
  int64_t max_capacity_tokens = 0;  // longest session

  int32_t max_pages() const { return PagesFor(max_capacity_tokens); }
  static int32_t PagesFor(int64_t tokens) {
    return static_cast<int32_t>((tokens + kPageTokens - 1) >> kPageShift);
  }
  // Bytes of K and V of one page over all layers.
  size_t PageBytes() const {
    return size_t{2} * layers * kv_heads * kPageTokens * head_dim * SizeOf(dtype);
  }
};

// The device KV pool and the slot tables that captured steps read. Slot kScratchSlot belongs to no
// session: warm-up runs on it, so that live state is never touched. Not thread-safe: used by the
// step loop alone.
class KvCache {
 public:
  static constexpr int32_t kScratchSlot = 0;

  static absl::StatusOr<std::unique_ptr<KvCache>> Create(const KvLayout& layout, Device& device);

  const KvLayout& layout() const { return layout_; }
  KvView View(int32_t layer) const;
  const SlotTables& tables() const { return tables_; }
  const PagePool& pool() const { return pool_; }

  // Reserves pages for `capacity_tokens` and a slot, and writes the slot's device state: latch
  // clear, default sampling. RESOURCE_EXHAUSTED says what is free.
  absl::StatusOr<int32_t> Open(int64_t capacity_tokens);
  void Close(int32_t slot);

  absl::Status ClearLatch(int32_t slot);
  absl::Status SetSampling(int32_t slot, const SlotSampling& sampling,
                           const std::vector<LogitBias>& bias);
  // Writes the slot's true page table, or `page` over the entry that holds `token_index` (fault
  // injection).
  absl::Status WritePageTable(int32_t slot);
  absl::Status CorruptPageTable(int32_t slot, int64_t token_index, int32_t page);

  // SHA-256 (hex) of K and V of tokens [0, length) of all layers and heads.
  absl::StatusOr<std::string> Digest(int32_t slot, int64_t length) const;

  int64_t free_tokens() const { return int64_t{pool_.free()} * kPageTokens; }
  int64_t total_tokens() const { return int64_t{pool_.total() - 1} * kPageTokens; }

 private:
  KvCache(const KvLayout& layout, Device& device)
      : layout_(layout), device_(device), pool_(layout.pool_pages) {}
  absl::Status Initialise();
  size_t LayerBytes() const {
    return layout_.PageBytes() / 2 / layout_.layers * layout_.pool_pages;
  }

  KvLayout layout_;
  Device& device_;
  PagePool pool_;
  std::vector<int32_t> free_slots_;
  std::vector<std::vector<int32_t>> pages_;  // by slot
  Buffer key_, value_;  // [layers, pool_pages, kv_heads, kPageTokens, head_dim]
  Buffer latch_, next_token_, capacity_, page_table_, sampling_, bias_, history_;
  SlotTables tables_ = {};
};

}  // namespace latchd
