#include "runtime/sched/batch_former.h"

#include <gtest/gtest.h>

namespace latchd {
namespace {

TEST(MakeBuckets, PowersOfTwoAndTheLargest) {
  EXPECT_EQ(MakeBuckets(1), (std::vector<int32_t>{1}));
  EXPECT_EQ(MakeBuckets(2), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(MakeBuckets(6), (std::vector<int32_t>{1, 2, 4, 6}));
  EXPECT_EQ(MakeBuckets(8), (std::vector<int32_t>{1, 2, 4, 8}));
  EXPECT_EQ(MakeBuckets(128).size(), 8u);
}

TEST(BucketFor, TheSmallestThatHoldsTheRows) {
  for (int32_t max_rows = 1; max_rows <= 40; ++max_rows) {
    const std::vector<int32_t> buckets = MakeBuckets(max_rows);
    for (int32_t rows = 1; rows <= max_rows; ++rows) {
      const int32_t bucket = BucketFor(buckets, rows);
      EXPECT_GE(bucket, rows);
      EXPECT_LE(bucket, max_rows);
      for (const int32_t other : buckets) {
        if (other >= rows) {
          EXPECT_LE(bucket, other);
        }
      }
    }
  }
}

}  // namespace
}  // namespace latchd
