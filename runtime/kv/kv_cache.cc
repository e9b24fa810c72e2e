#include "runtime/kv/kv_cache.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/model/sha256.h"

namespace latchd {

absl::StatusOr<std::unique_ptr<KvCache>> KvCache::Create(const KvLayout& layout, Device& device) {
  auto cache = std::unique_ptr<KvCache>(new KvCache(layout, device));
  if (absl::Status status = cache->Initialise(); !status.ok()) return status;
  return cache;
}

absl::Status KvCache::Initialise() {
  const size_t slots = layout_.slots;
  const size_t kv_bytes = LayerBytes() * layout_.layers;
  struct Wanted {
    Buffer* buffer;
    size_t bytes;
    const char* label;
  };
  const Wanted wanted[] = {
      {&key_, kv_bytes, "kv"},
      {&value_, kv_bytes, "kv"},
      {&latch_, slots * sizeof(Latch), "tables"},
      {&next_token_, slots * sizeof(int32_t), "tables"},
      {&capacity_, slots * sizeof(int32_t), "tables"},
      {&page_table_, slots * layout_.max_pages() * sizeof(int32_t), "tables"},
      {&sampling_, slots * sizeof(SlotSampling), "tables"},
      {&bias_, slots * kMaxLogitBias * sizeof(LogitBias), "tables"},
      {&history_, size_t{kPageTokens} * layout_.pool_pages * sizeof(int32_t), "tables"},
  };
  for (const Wanted& want : wanted) {
    absl::StatusOr<Buffer> buffer = device_.Allocate(want.bytes, MemoryKind::kDevice, want.label);
    if (!buffer.ok()) return buffer.status();
    *want.buffer = *std::move(buffer);
  }
  tables_ = {.latch = latch_.data<Latch>(),
             .next_token = next_token_.data<int32_t>(),
             .capacity = capacity_.data<int32_t>(),
             .page_table = page_table_.data<int32_t>(),
             .sampling = sampling_.data<SlotSampling>(),
             .bias = bias_.data<LogitBias>(),
             .history = history_.data<int32_t>(),
             .slots = layout_.slots,
             .max_pages = layout_.max_pages(),
             .pool_pages = layout_.pool_pages,
             .page_shift = kPageShift,
             .page_tokens = kPageTokens};
  pages_.resize(slots);
  for (int32_t slot = layout_.slots - 1; slot >= 0; --slot) free_slots_.push_back(slot);
  // The first slot taken is the scratch slot.
  absl::StatusOr<int32_t> scratch =
      Open(std::min<int64_t>(kPageTokens, layout_.max_capacity_tokens));
  if (!scratch.ok()) return scratch.status();
  return absl::OkStatus();
}

KvView KvCache::View(int32_t layer) const {
  const size_t offset = LayerBytes() * layer;
  return {.key = key_.data<std::byte>() + offset,
          .value = value_.data<std::byte>() + offset,
          .page_table = tables_.page_table,
          .max_pages = tables_.max_pages,
          .pool_pages = tables_.pool_pages,
          .page_shift = kPageShift,
          .page_tokens = kPageTokens,
          .kv_heads = layout_.kv_heads,
          .head_dim = layout_.head_dim,
          .dtype = layout_.dtype};
}

absl::StatusOr<int32_t> KvCache::Open(int64_t capacity_tokens) {
  if (free_slots_.empty()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "all ", layout_.slots - 1, " sessions are open: close one or raise --max-sessions"));
  }
  absl::StatusOr<std::vector<int32_t>> pages = pool_.Take(KvLayout::PagesFor(capacity_tokens));
  if (!pages.ok()) {
    return absl::ResourceExhaustedError(absl::StrCat("capacity_tokens: ", capacity_tokens,
                                                     " asked, ", free_tokens(), " of ",
                                                     total_tokens(), " KV tokens are free"));
  }
  const int32_t slot = free_slots_.back();
  free_slots_.pop_back();
  pages_[slot] = *std::move(pages);

  const int32_t capacity = static_cast<int32_t>(capacity_tokens);
  absl::Status status = WritePageTable(slot);
  if (status.ok()) status = device_.Upload(tables_.capacity + slot, &capacity, sizeof(capacity));
  if (status.ok()) status = ClearLatch(slot);
  if (status.ok()) status = SetSampling(slot, {.top_p = 1.0f, .repetition_penalty = 1.0f}, {});
  if (!status.ok()) {
    Close(slot);
    return status;
  }
  return slot;
}

void KvCache::Close(int32_t slot) {
  pool_.Return(pages_[slot]);
  free_slots_.push_back(slot);
}

absl::Status KvCache::ClearLatch(int32_t slot) {
  const Latch clear = {};
  return device_.Upload(tables_.latch + slot, &clear, sizeof(clear));
}

absl::Status KvCache::SetSampling(int32_t slot, const SlotSampling& sampling,
                                  const std::vector<LogitBias>& bias) {
  if (!bias.empty()) {
    absl::Status status = device_.Upload(tables_.bias + int64_t{slot} * kMaxLogitBias, bias.data(),
                                         bias.size() * sizeof(LogitBias));
    if (!status.ok()) return status;
  }
  return device_.Upload(tables_.sampling + slot, &sampling, sizeof(sampling));
}

absl::Status KvCache::WritePageTable(int32_t slot) {
  std::vector<int32_t> row(tables_.max_pages, -1);
  std::copy(pages_[slot].begin(), pages_[slot].end(), row.begin());
  return device_.Upload(tables_.page_table + int64_t{slot} * tables_.max_pages, row.data(),
                        row.size() * sizeof(int32_t));
}

absl::Status KvCache::CorruptPageTable(int32_t slot, int64_t token_index, int32_t page) {
  const int64_t entry = int64_t{slot} * tables_.max_pages + (token_index >> kPageShift);
  return device_.Upload(tables_.page_table + entry, &page, sizeof(page));
}

absl::StatusOr<std::string> KvCache::Digest(int32_t slot, int64_t length) const {
  Sha256 sha;
  const size_t row_bytes = layout_.head_dim * SizeOf(layout_.dtype);
  std::vector<char> rows(kPageTokens * row_bytes);
  for (int32_t layer = 0; layer < layout_.layers; ++layer) {
    for (const Buffer* side : {&key_, &value_}) {
      for (int64_t token = 0; token < length; token += kPageTokens) {
        const int64_t page = pages_[slot][token >> kPageShift];
        const size_t bytes = std::min<int64_t>(kPageTokens, length - token) * row_bytes;
        for (int32_t head = 0; head < layout_.kv_heads; ++head) {
          const std::byte* source = side->data<std::byte>() + LayerBytes() * layer +
                                    (page * layout_.kv_heads + head) * kPageTokens * row_bytes;
          if (absl::Status status = device_.Download(rows.data(), source, bytes); !status.ok())
            return status;
          sha.Update(std::string_view(rows.data(), bytes));
        }
      }
    }
  }
  return sha.Hex();
}

}  // namespace latchd
