#include "runtime/kv/kv_cache.h"

#include <cstring>
#include <set>

#include "runtime/device/cpu_device.h"
#include "tests/support/faulty_device.h"
#include "tests/support/reference_random.h"
#include "tests/support/status_matchers.h"

namespace latchd {
namespace {

using testing::Fails;
using testing::FaultyDevice;
using testing::IsOk;
using enum absl::StatusCode;

constexpr KvLayout kLayout = {.layers = 2,
                              .kv_heads = 2,
                              .head_dim = 8,
                              .dtype = DType::kF16,
                              .slots = 4,       // three sessions and the scratch slot
                              .pool_pages = 9,  // eight of sessions
                              .max_capacity_tokens = 300};

struct KvCacheTest : ::testing::Test {
  FaultyDevice device{CreateCpuDevice(1)};
  std::unique_ptr<KvCache> kv;
  reference::Random random;

  void SetUp() override { Make(kLayout); }
  void Make(const KvLayout& layout) {
    kv.reset();
    absl::StatusOr<std::unique_ptr<KvCache>> made = KvCache::Create(layout, device);
    ASSERT_THAT(made, IsOk());
    kv = *std::move(made);
  }
  int32_t Open(int64_t capacity) {
    absl::StatusOr<int32_t> slot = kv->Open(capacity);
    EXPECT_THAT(slot, IsOk());
    return slot.value_or(-1);
  }
  std::string Digest(int32_t slot, int64_t length) {
    absl::StatusOr<std::string> digest = kv->Digest(slot, length);
    EXPECT_THAT(digest, IsOk());
    return digest.value_or("");
  }
  std::vector<int32_t> Pages(int32_t slot) const {
    const SlotTables& t = kv->tables();
    return {t.page_table + slot * t.max_pages, t.page_table + (slot + 1) * t.max_pages};
  }
  // Flips one byte of element [layer, head, token, d] of K or V, as a kernel addresses it.
  void Flip(int32_t layer, bool value, int32_t slot, int32_t head, int32_t token, int32_t d) {
    const KvView view = kv->View(layer);
    auto* data = static_cast<uint16_t*>(value ? view.value : view.key);
    data[view.Offset(slot, head, token) + static_cast<size_t>(d)] ^= 0x40;
  }
};

TEST_F(KvCacheTest, OpenReservesPagesAndWritesTheSlotsState) {
  SlotTables tables = kv->tables();
  tables.latch[1].mask = tables.latch[2].mask = tables.latch[3].mask = 99;  // left by others
  const int32_t slot = Open(130);
  EXPECT_NE(slot, KvCache::kScratchSlot);
  EXPECT_EQ(kv->free_tokens(), (8 - 3) * kPageTokens);
  EXPECT_EQ(kv->total_tokens(), 8 * kPageTokens);
  EXPECT_EQ(tables.capacity[slot], 130);
  EXPECT_EQ(tables.latch[slot].mask, 0u);
  EXPECT_EQ(tables.sampling[slot].temperature, 0.0f);
  EXPECT_EQ(tables.sampling[slot].top_p, 1.0f);
  EXPECT_EQ(tables.sampling[slot].repetition_penalty, 1.0f);

  ASSERT_EQ(tables.max_pages, 5);
  const std::vector<int32_t> pages = Pages(slot);
  const std::set<int32_t> reserved(pages.begin(), pages.begin() + 3);
  EXPECT_EQ(reserved.size(), 3u);
  EXPECT_GE(*reserved.begin(), 0);
  EXPECT_LT(*reserved.rbegin(), kLayout.pool_pages);
  EXPECT_FALSE(reserved.contains(Pages(KvCache::kScratchSlot)[0]));
  EXPECT_EQ(pages[3], -1);
  EXPECT_EQ(pages[4], -1);
}

TEST_F(KvCacheTest, CapacityRoundsUpToWholePages) {
  EXPECT_EQ(KvLayout::PagesFor(0), 0);
  EXPECT_EQ(KvLayout::PagesFor(1), 1);
  EXPECT_EQ(KvLayout::PagesFor(kPageTokens), 1);
  EXPECT_EQ(KvLayout::PagesFor(kPageTokens + 1), 2);
  Open(kPageTokens);
  EXPECT_EQ(kv->free_tokens(), 7 * kPageTokens);
  Open(kPageTokens + 1);
  EXPECT_EQ(kv->free_tokens(), 5 * kPageTokens);
}

TEST_F(KvCacheTest, ARefusalSaysWhatIsFreeAndTakesNothing) {
  Open(300);
  EXPECT_THAT(kv->Open(200), Fails(kResourceExhausted,
                                   "capacity_tokens: 200 asked, 192 of 512 KV tokens are free"));
  EXPECT_EQ(kv->free_tokens(), 192);
  Open(64);
  Open(64);
  EXPECT_THAT(kv->Open(1), Fails(kResourceExhausted, "all 3 sessions are open"));
  EXPECT_EQ(kv->free_tokens(), 64);
}

TEST_F(KvCacheTest, ADeviceErrorDuringOpenGivesSlotAndPagesBack) {
  for (int64_t nth = 1; nth <= 4; ++nth) {
    device.FailOn(FaultyDevice::Kind::kUpload, nth);
    EXPECT_THAT(kv->Open(128), Fails(kInternal, "injected fault in upload"));
    EXPECT_EQ(kv->free_tokens(), kv->total_tokens());
  }
  for (int i = 0; i < 3; ++i) Open(64);
}

TEST_F(KvCacheTest, NeitherPagesNorSlotsLeakOverTenThousandRandomOpensAndCloses) {
  SCOPED_TRACE(random.note());
  std::vector<std::pair<int32_t, int32_t>> open;  // slot, pages
  int32_t used = 0, opened = 0;
  for (int i = 0; i < 10000; ++i) {
    if (!open.empty() && random.Chance(0.5)) {
      random.Shuffle(open);
      kv->Close(open.back().first);
      used -= open.back().second;
      open.pop_back();
    } else {
      const int32_t capacity = random.Int(1, 300);
      const int32_t pages = KvLayout::PagesFor(capacity);
      absl::StatusOr<int32_t> slot = kv->Open(capacity);
      ASSERT_EQ(slot.ok(), open.size() < 3 && used + pages <= 8);
      if (slot.ok()) {
        ++opened;
        used += pages;
        open.emplace_back(*slot, pages);
      }
    }
    ASSERT_EQ(kv->free_tokens(), (8 - used) * kPageTokens);
  }
  EXPECT_GT(opened, 1000);
  std::set<int32_t> pages;  // of live sessions and the scratch slot: none is shared
  size_t entries = 1;
  pages.insert(Pages(KvCache::kScratchSlot)[0]);
  for (const auto& [slot, count] : open) {
    const std::vector<int32_t> mine = Pages(slot);
    pages.insert(mine.begin(), mine.begin() + count);
    entries += static_cast<size_t>(count);
  }
  EXPECT_EQ(pages.size(), entries);
}

TEST_F(KvCacheTest, EveryBufferIsReleased) {
  EXPECT_GT(device.allocated_bytes(), size_t{9} * kLayout.PageBytes());
  EXPECT_EQ(device.allocations().at("kv"), size_t{9} * kLayout.PageBytes());
  kv.reset();
  EXPECT_EQ(device.allocated_bytes(), 0u);
}

TEST_F(KvCacheTest, AnAllocationThatFailsFailsCreateAndLeavesNothing) {
  kv.reset();
  for (int64_t nth = 1; nth <= 9; ++nth) {
    device.FailOn(FaultyDevice::Kind::kAllocate, nth);
    EXPECT_THAT(KvCache::Create(kLayout, device), Fails(kInternal, "injected fault in allocate"));
    EXPECT_EQ(device.allocated_bytes(), 0u);
  }
  EXPECT_THAT(KvCache::Create(kLayout, device), IsOk());
}

TEST_F(KvCacheTest, TheDigestSeesEveryValidRowAndNothingElse) {
  SCOPED_TRACE(random.note());
  const int32_t slot = Open(200), other = Open(100);
  const int32_t length = random.Int(65, 190);  // more than a page, and not all
  // What an earlier owner left in every byte of the pool.
  std::memset(kv->View(0).key, 0x3c, kLayout.PageBytes() / 2 * 9);
  const std::string before = Digest(slot, length);
  EXPECT_EQ(before.size(), 64u);
  EXPECT_EQ(Digest(slot, length), before);

  for (int i = 0; i < 50; ++i) {
    const int32_t layer = random.Int(0, 1), head = random.Int(0, 1), d = random.Int(0, 7);
    const bool value = random.Chance(0.5);
    const int32_t token = i == 0 ? length - 1 : random.Int(0, length - 1);
    Flip(layer, value, slot, head, token, d);
    EXPECT_NE(Digest(slot, length), before) << "layer " << layer << " token " << token;
    Flip(layer, value, slot, head, token, d);
    ASSERT_EQ(Digest(slot, length), before);

    Flip(layer, value, slot, head, i == 0 ? length : random.Int(length, 199), d);
    Flip(layer, value, other, head, random.Int(0, 99), d);
    EXPECT_EQ(Digest(slot, length), before) << "memory beyond the length is not the session's";
  }
  EXPECT_NE(Digest(slot, length - 1), before);
}

TEST_F(KvCacheTest, EqualRowsHaveEqualDigestsWhateverPagesHoldThem) {
  SCOPED_TRACE(random.note());
  const int32_t a = Open(70), b = Open(300);
  for (int32_t layer = 0; layer < 2; ++layer) {
    const KvView view = kv->View(layer);
    for (void* side : {view.key, view.value}) {
      for (int32_t head = 0; head < 2; ++head) {
        for (int32_t token = 0; token < 70; ++token) {
          const std::vector<char> row = reference::Encode(DType::kF16, random.Normals(8));
          for (const int32_t slot : {a, b}) {
            std::memcpy(static_cast<char*>(side) + view.Offset(slot, head, token) * 2, row.data(),
                        row.size());
          }
        }
      }
    }
  }
  EXPECT_EQ(Digest(a, 70), Digest(b, 70));
  EXPECT_NE(Digest(a, 70), Digest(b, 71));
  EXPECT_EQ(Digest(a, 0), Digest(b, 0));
}

TEST_F(KvCacheTest, LayersHaveTheirOwnMemory) {
  const int32_t slot = Open(64);
  const std::string zero = Digest(slot, 64);
  Flip(1, false, slot, 0, 3, 0);
  EXPECT_EQ(*static_cast<const char*>(kv->View(0).key), 0);
  EXPECT_NE(Digest(slot, 64), zero);
  const auto* first = static_cast<const char*>(kv->View(0).key);
  const auto* second = static_cast<const char*>(kv->View(1).key);
  EXPECT_EQ(second - first, static_cast<ptrdiff_t>(kLayout.PageBytes() / 4 * 9));
}

TEST_F(KvCacheTest, SamplingAndBiasReachTheTables) {
  const int32_t slot = Open(64);
  const std::vector<LogitBias> bias = {{3, 1.5f}, {9, -2.0f}};
  ASSERT_THAT(
      kv->SetSampling(slot, {.temperature = 0.5f, .top_k = 7, .seed = 11, .bias_count = 2}, bias),
      IsOk());
  const SlotTables& tables = kv->tables();
  EXPECT_EQ(tables.sampling[slot].top_k, 7);
  EXPECT_EQ(tables.sampling[slot].seed, 11u);
  EXPECT_EQ(tables.bias[slot * kMaxLogitBias + 1].token, 9);
  EXPECT_EQ(tables.bias[slot * kMaxLogitBias + 1].bias, -2.0f);
}

TEST_F(KvCacheTest, ACorruptPageTableIsPutBack) {
  const int32_t slot = Open(200);
  const std::vector<int32_t> pages = Pages(slot);
  ASSERT_THAT(kv->CorruptPageTable(slot, 64, 12345), IsOk());
  EXPECT_EQ(Pages(slot)[1], 12345);
  EXPECT_EQ(Pages(slot)[0], pages[0]);
  ASSERT_THAT(kv->WritePageTable(slot), IsOk());
  EXPECT_EQ(Pages(slot), pages);
}

}  // namespace
}  // namespace latchd
