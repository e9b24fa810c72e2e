#pragma once

#include <cstdint>
#include <vector>

namespace latchd {

// Captured row counts up to `max_rows`: 1, 2, 4, ... and max_rows itself.
std::vector<int32_t> MakeBuckets(int32_t max_rows);

// The smallest bucket that holds `rows`. REQUIRES: 1 <= rows <= the largest bucket.
int32_t BucketFor(const std::vector<int32_t>& buckets, int32_t rows);

}  // namespace latchd
