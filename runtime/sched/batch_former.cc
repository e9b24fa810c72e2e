#include "runtime/sched/batch_former.h"

#include <algorithm>

namespace latchd {

// Powers of two: at most half of a replay's rows are idle, for log2(max_rows) graphs.
std::vector<int32_t> MakeBuckets(int32_t max_rows) {
  std::vector<int32_t> buckets;
  for (int32_t rows = 1; rows < max_rows; rows *= 2) buckets.push_back(rows);
  buckets.push_back(max_rows);
  return buckets;
}

int32_t BucketFor(const std::vector<int32_t>& buckets, int32_t rows) {
  return *std::lower_bound(buckets.begin(), buckets.end(), rows);
}

}  // namespace latchd
