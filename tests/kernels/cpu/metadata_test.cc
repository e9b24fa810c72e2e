#include <gtest/gtest.h>

#include <climits>
#include <cstring>

#include "kernels/api/op_table.h"
#include "tests/support/reference_random.h"

namespace latchd {
namespace {

constexpr int32_t kSlots = 4, kMaxPages = 4, kPageShift = 2, kPoolPages = 20, kVocab = 50,
                  kRotaryRows = 12;

// Four slots that may hold 14 tokens in pages of 4.
struct MetadataTest : testing::Test {
  std::vector<Latch> latch = std::vector<Latch>(kSlots, Latch{});
  std::vector<int32_t> next_token = {7, 8, -1, 9};
  std::vector<int32_t> capacity = std::vector<int32_t>(kSlots, 14);
  std::vector<int32_t> page_table = {3, 1, 4, 15, 9, 2, 6, 5, 0, 7, 8, 10, 11, 12, 13, 14};
  int32_t latch_stride = 1;
  MetadataOp op = {.rotary_rows = kRotaryRows, .vocab = kVocab};

  std::vector<RowMeta> Run(const std::vector<StepRow>& rows) {
    std::vector<RowMeta> meta(rows.size(), RowMeta{99, 99, 99, 99, 99, 99});
    op.inputs = rows.data();
    op.meta = meta.data();
    op.rows = static_cast<int32_t>(rows.size());
    op.tables = {.latch = latch.data(),
                 .next_token = next_token.data(),
                 .capacity = capacity.data(),
                 .page_table = page_table.data(),
                 .slots = kSlots,
                 .max_pages = kMaxPages,
                 .pool_pages = kPoolPages,
                 .page_shift = kPageShift,
                 .page_tokens = 4,
                 .latch_stride = latch_stride};
    EXPECT_TRUE(CpuOps().metadata(op, nullptr).ok());
    return meta;
  }
  static void ExpectSkipped(const RowMeta& m) {
    EXPECT_EQ(m.slot, -1);
    EXPECT_EQ(m.token, -1);
    EXPECT_EQ(m.past, -1);
    EXPECT_EQ(m.total, -1);
    EXPECT_EQ(m.position, -1);
    EXPECT_EQ(m.flags, 0u);
  }
  // One bad row between two good ones: only its slot latches, and the good rows are what they are
  // without it.
  void ExpectViolation(const StepRow& bad, uint32_t mask, uint32_t first, int64_t value,
                       int64_t limit) {
    const std::vector<RowMeta> meta = Run({{0, 5, 3, kRowSample, 0, 1}, bad, {3, 6, 2, 0, 0, 1}});
    ExpectSkipped(meta[1]);
    EXPECT_EQ(meta[0].total, 4);
    EXPECT_EQ(meta[2].total, 3);
    const Latch& l = latch[static_cast<size_t>(bad.slot)];
    EXPECT_EQ(l.mask, mask);
    EXPECT_EQ(l.first, first);
    EXPECT_EQ(l.layer, -1);
    EXPECT_EQ(l.row, 1);
    EXPECT_EQ(l.step, bad.step);
    EXPECT_EQ(l.value, value);
    EXPECT_EQ(l.limit, limit);
    EXPECT_EQ(latch[0].mask, 0u);
    EXPECT_EQ(latch[3].mask, 0u);
  }
};

// The latch of a session of several rows: a violation leaves the other rows of its call alone and
// skips every row of the next.
TEST_F(MetadataTest, SharedLatchIsJudgedAsItWasBeforeTheCall) {
  latch_stride = 0;
  const std::vector<RowMeta> meta =
      Run({{0, 5, 3, 0, 0, 8}, {1, 5, 14, 0, 0, 8}, {2, 5, 2, 0, 0, 8}, {3, 5, -2, 0, 0, 8}});
  EXPECT_EQ(meta[0].total, 4);
  ExpectSkipped(meta[1]);
  EXPECT_EQ(meta[2].total, 3);
  ExpectSkipped(meta[3]);
  EXPECT_EQ(latch[0].mask, kPresentCapacity | kPosition | kPastNegative | kQueryNegative);
  EXPECT_EQ(latch[0].first, kPresentCapacity);
  EXPECT_EQ(latch[0].row, 1);
  EXPECT_EQ(latch[0].step, 8);
  EXPECT_EQ(latch[0].value, 15);
  EXPECT_EQ(latch[0].limit, 14);
  EXPECT_EQ(latch[1].mask | latch[2].mask | latch[3].mask, 0u);
  for (const RowMeta& m : Run({{0, 5, 3, 0, 0, 9}, {2, 5, 2, 0, 0, 9}})) ExpectSkipped(m);
  EXPECT_EQ(latch[0].step, 8);
}

// A row that attends only appends nothing, so it may use a full cache.
TEST_F(MetadataTest, AttendOnlyRowsHaveNoNewKey) {
  const std::vector<RowMeta> meta = Run({{1, 5, 4, kRowAttendOnly, 0, 1}});
  EXPECT_EQ(meta[0].past, 5);
  EXPECT_EQ(meta[0].total, 5);
  EXPECT_EQ(meta[0].position, 4);
}

TEST_F(MetadataTest, ResolvesRows) {
  const std::vector<RowMeta> meta = Run({{1, kTokenFromSlot, 5, kRowSample, 77, 3},
                                         {-1, 4, 900, kRowSample, 0, 0},
                                         {0, 49, 0, kRowPrompt | kRowExplicitPosition, 11, 1}});
  EXPECT_EQ(meta[0].slot, 1);
  EXPECT_EQ(meta[0].token, 8);
  EXPECT_EQ(meta[0].past, 5);
  EXPECT_EQ(meta[0].total, 6);
  EXPECT_EQ(meta[0].position, 5) << "position is used only with its flag";
  EXPECT_EQ(meta[0].flags, kRowSample);
  ExpectSkipped(meta[1]);
  EXPECT_EQ(meta[2].position, 11);
  EXPECT_EQ(meta[2].token, 49);
  for (const Latch& l : latch) EXPECT_EQ(l.mask, 0u);
}

TEST_F(MetadataTest, TotalOverflow) {
  op.rotary_rows = 0;
  capacity[1] = INT_MAX;
  ExpectViolation({1, 1, INT_MAX, 0, 0, 5}, kTotalOverflow | kPresentCapacity, kTotalOverflow,
                  int64_t{INT_MAX} + 1, INT_MAX);
}
TEST_F(MetadataTest, NegativeLength) {
  ExpectViolation({1, 1, -1, 0, 0, 6}, kPastNegative | kQueryNegative | kPosition, kPastNegative, 0,
                  1);
}
TEST_F(MetadataTest, PresentCapacity) {
  op.rotary_rows = 100;
  ExpectViolation({1, 1, 14, 0, 0, 7}, kPresentCapacity, kPresentCapacity, 15, 14);
}
TEST_F(MetadataTest, PastAndPresentCapacity) {
  op.rotary_rows = 100;
  ExpectViolation({1, 1, 15, 0, 0, 7}, kPastCapacity | kPresentCapacity, kPastCapacity, 15, 14);
}
TEST_F(MetadataTest, ImplicitAndExplicitPosition) {
  ExpectViolation({1, 1, 12, 0, 0, 8}, kPosition, kPosition, 12, kRotaryRows);
  ExpectViolation({2, 1, 3, kRowExplicitPosition, -3, 8}, kPosition, kPosition, -3, kRotaryRows);
}
TEST_F(MetadataTest, HugeExplicitPositionIsNotTruncated) {
  ExpectViolation({2, 1, 3, kRowExplicitPosition, (int64_t{1} << 32) + 2, 8}, kPosition, kPosition,
                  (int64_t{1} << 32) + 2, kRotaryRows);
}
TEST_F(MetadataTest, TokenRange) {
  ExpectViolation({1, kVocab, 3, 0, 0, 9}, kTokenRange, kTokenRange, kVocab, kVocab);
  ExpectViolation({2, kTokenFromSlot, 3, 0, 0, 9}, kTokenRange, kTokenRange, -1, kVocab);
}
TEST_F(MetadataTest, TokensAreNotJudgedWithoutVocabulary) {
  op.vocab = 0;
  EXPECT_EQ(Run({{1, 1 << 20, 3, 0, 0, 9}})[0].slot, 1);
}
TEST_F(MetadataTest, LengthAndTokenAreBothReported) {
  ExpectViolation({1, -7, 14, 0, 0, 9}, kPresentCapacity | kPosition | kTokenRange,
                  kPresentCapacity, 15, 14);
}
TEST_F(MetadataTest, EveryPageUpToTheLengthIsJudged) {
  page_table[4 + 1] = kPoolPages;
  ExpectViolation({1, 1, 9, 0, 0, 10}, kPageTable, kPageTable, kPoolPages, kPoolPages);
  page_table[8 + 2] = -1;
  ExpectViolation({2, 1, 8, 0, 0, 10}, kPageTable, kPageTable, -1, kPoolPages);
}
TEST_F(MetadataTest, PagesBeyondTheLengthAreNotJudged) {
  page_table[4 + 2] = -1;
  EXPECT_EQ(Run({{1, 1, 7, 0, 0, 1}})[0].total, 8);
  EXPECT_EQ(latch[1].mask, 0u);
}

TEST_F(MetadataTest, StickyLatchSkipsAndKeepsItsFirstViolation) {
  Run({{1, 1, 14, 0, 0, 7}});
  const Latch before = latch[1];
  ASSERT_NE(before.mask, 0u);
  ExpectSkipped(Run({{1, 1, 2, 0, 0, 8}})[0]);
  ExpectSkipped(Run({{1, -5, -1, 0, 0, 9}})[0]);
  EXPECT_EQ(std::memcmp(&before, &latch[1], sizeof(Latch)), 0);
}

TEST_F(MetadataTest, PromptRowsAfterTheFirstViolationAreSkipped) {
  page_table[4 + 1] = 99;
  const std::vector<RowMeta> meta = Run({{1, 1, 2, kRowPrompt, 0, 4},
                                         {1, 2, 3, kRowPrompt, 0, 4},
                                         {1, 3, 4, kRowPrompt, 0, 4},
                                         {1, 4, 5, kRowPrompt | kRowSample, 0, 4}});
  EXPECT_EQ(meta[0].total, 3);
  EXPECT_EQ(meta[1].total, 4);
  ExpectSkipped(meta[2]);
  ExpectSkipped(meta[3]);
  EXPECT_EQ(latch[1].mask, kPageTable);
  EXPECT_EQ(latch[1].row, 2);
}

TEST(EmbedTest, CopiesTheTokensRowAndKeepsHistory) {
  reference::Random random;
  SCOPED_TRACE(random.note());
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const std::vector<float> values = random.Normals(10 * 33);
    const std::vector<char> table = reference::Encode(dtype, values);
    std::vector<float> decoded(values.size()), out(3 * 33, -1.0f);
    ConvertToF32(dtype, table.data(), decoded.data(), decoded.size());
    const std::vector<RowMeta> meta = {
        {0, 4, 5, 6, 5, kRowPrompt}, reference::Skipped(), {1, 9, 0, 1, 0, 0}};
    std::vector<int32_t> pages = {3, 2, 1, 0}, history(16, -1), expected(16, -1);
    const EmbedOp op = {.meta = meta.data(),
                        .table = {table.data(), dtype, 10, 33},
                        .out = out.data(),
                        .tables = {.page_table = pages.data(),
                                   .history = history.data(),
                                   .slots = 2,
                                   .max_pages = 2,
                                   .pool_pages = 4,
                                   .page_shift = 2,
                                   .page_tokens = 4},
                        .rows = 3};
    ASSERT_TRUE(CpuOps().embed(op, nullptr).ok());
    EXPECT_TRUE(std::equal(out.begin(), out.begin() + 33, decoded.begin() + 4 * 33));
    EXPECT_EQ(std::count(out.begin() + 33, out.begin() + 66, -1.0f), 33);
    EXPECT_TRUE(std::equal(out.begin() + 66, out.end(), decoded.begin() + 9 * 33));
    expected[2 * 4 + 1] = 4 | kPromptBit;
    expected[1 * 4 + 0] = 9;
    EXPECT_EQ(history, expected);
  }
}

TEST(UploadTest, Copies) {
  const std::vector<char> source = {1, 2, 3, 4};
  std::vector<char> destination(4);
  ASSERT_TRUE(CpuOps().upload({source.data(), destination.data(), 4}, nullptr).ok());
  EXPECT_EQ(source, destination);
}

}  // namespace
}  // namespace latchd
