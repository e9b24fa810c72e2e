#pragma once

#include <memory>
#include <optional>
#include <set>

#include "absl/time/time.h"
#include "runtime/mutex.h"

namespace latchd {

// Which engine requests are unanswered, and since when. With the time of the last good step it
// tells a daemon that is idle from one that is stuck. Thread-safe.
class WorkTracker {
 public:
  // A request is pending while its token lives. The tracker must outlive its tokens.
  using Token = std::shared_ptr<void>;

  Token Begin(absl::Time now) {
    MutexLock lock(mutex_);
    const auto at = starts_.insert(now);
    return Token(nullptr, [this, at](void*) {
      MutexLock lock(mutex_);
      starts_.erase(at);
    });
  }

  // Start of the oldest pending request.
  std::optional<absl::Time> oldest() const {
    MutexLock lock(mutex_);
    if (starts_.empty()) return std::nullopt;
    return *starts_.begin();
  }

 private:
  mutable Mutex mutex_;
  std::multiset<absl::Time> starts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace latchd
