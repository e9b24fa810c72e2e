#include "runtime/kv/page_pool.h"

#include "absl/strings/str_cat.h"

namespace latchd {

PagePool::PagePool(int32_t pages) : total_(pages) {
  free_.reserve(pages);
  for (int32_t page = pages - 1; page >= 0; --page) free_.push_back(page);
}

absl::StatusOr<std::vector<int32_t>> PagePool::Take(int32_t count) {
  if (count > free()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("needs ", count, " KV pages, ", free(), " are free"));
  }
  std::vector<int32_t> taken(free_.end() - count, free_.end());
  free_.resize(free_.size() - count);
  return taken;
}

void PagePool::Return(std::vector<int32_t>& pages) {
  free_.insert(free_.end(), pages.begin(), pages.end());
  pages.clear();
}

}  // namespace latchd
