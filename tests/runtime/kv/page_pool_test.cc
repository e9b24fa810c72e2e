#include "runtime/kv/page_pool.h"

#include <map>
#include <set>

#include "tests/support/reference_random.h"
#include "tests/support/status_matchers.h"

namespace latchd {
namespace {

using testing::Fails;
using testing::IsOk;

TEST(PagePool, GivesEachPageOnce) {
  PagePool pool(5);
  EXPECT_EQ(pool.total(), 5);
  absl::StatusOr<std::vector<int32_t>> first = pool.Take(2), second = pool.Take(3);
  ASSERT_THAT(first, IsOk());
  ASSERT_THAT(second, IsOk());
  std::set<int32_t> all(first->begin(), first->end());
  all.insert(second->begin(), second->end());
  EXPECT_EQ(all, (std::set<int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(pool.free(), 0);
}

TEST(PagePool, TakesAllOrNothing) {
  PagePool pool(4);
  absl::StatusOr<std::vector<int32_t>> held = pool.Take(1);
  ASSERT_THAT(held, IsOk());
  EXPECT_THAT(pool.Take(4),
              Fails(absl::StatusCode::kResourceExhausted, "needs 4 KV pages, 3 are free"));
  EXPECT_EQ(pool.free(), 3) << "a refusal takes nothing";
  EXPECT_THAT(pool.Take(3), IsOk());
  EXPECT_THAT(pool.Take(1), Fails(absl::StatusCode::kResourceExhausted, "0 are free"));
  absl::StatusOr<std::vector<int32_t>> none = pool.Take(0);
  ASSERT_THAT(none, IsOk());
  EXPECT_TRUE(none->empty());
}

TEST(PagePool, ReturnEmptiesTheList) {
  PagePool pool(3);
  std::vector<int32_t> pages = *pool.Take(3);
  pool.Return(pages);
  EXPECT_TRUE(pages.empty());
  EXPECT_EQ(pool.free(), 3);
  pool.Return(pages);
  EXPECT_EQ(pool.free(), 3) << "an empty list gives nothing back";
}

// Owners take and return at random; a page never has two owners, and none is lost.
TEST(PagePool, LosesAndDoublesNoPageOverTenThousandRandomCalls) {
  reference::Random random;
  SCOPED_TRACE(random.note());
  const int32_t total = random.Int(1, 40);
  PagePool pool(total);
  std::map<int32_t, int32_t> owner;  // by page
  std::vector<std::vector<int32_t>> held(8);
  for (int i = 0; i < 10000; ++i) {
    const int32_t who = random.Int(0, 7);
    std::vector<int32_t>& mine = held[static_cast<size_t>(who)];
    if (!mine.empty()) {
      for (const int32_t page : mine) owner.erase(page);
      pool.Return(mine);
      continue;
    }
    const int32_t want = random.Int(0, total);
    absl::StatusOr<std::vector<int32_t>> taken = pool.Take(want);
    ASSERT_EQ(taken.ok(), want <= total - static_cast<int32_t>(owner.size()));
    if (!taken.ok()) continue;
    mine = *std::move(taken);
    ASSERT_EQ(static_cast<int32_t>(mine.size()), want);
    for (const int32_t page : mine) {
      ASSERT_TRUE(page >= 0 && page < total);
      ASSERT_TRUE(owner.emplace(page, who).second) << "page " << page << " has two owners";
    }
    ASSERT_EQ(pool.free(), total - static_cast<int32_t>(owner.size()));
  }
  for (std::vector<int32_t>& mine : held) pool.Return(mine);
  EXPECT_EQ(pool.free(), total);
}

}  // namespace
}  // namespace latchd
