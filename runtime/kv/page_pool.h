#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace latchd {

// Which KV pages are free. Taken whole when a session opens, so an opened session never fails for
// lack of KV memory. Not thread-safe: used by the step loop alone.
class PagePool {
 public:
  explicit PagePool(int32_t pages);

  // `count` page ids, or RESOURCE_EXHAUSTED saying what is free; then nothing is taken.
  absl::StatusOr<std::vector<int32_t>> Take(int32_t count);
  // Gives pages back and empties the list.
  void Return(std::vector<int32_t>& pages);

  int32_t total() const { return total_; }
  int32_t free() const { return static_cast<int32_t>(free_.size()); }

 private:
  int32_t total_;
  std::vector<int32_t> free_;  // a stack: the page used last is taken first
};

}  // namespace latchd
