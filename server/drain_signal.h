#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "runtime/mutex.h"

namespace latchd {

// Tells long-lived streams that the daemon drains. Thread-safe.
class DrainSignal {
 public:
  // `listener` runs once, from Fire or, when that has been, from here. It must not call back into
  // the signal. Returns a handle for Unsubscribe; after that the listener may still be running on
  // another thread, so it must hold what it uses (weak_ptr).
  uint64_t Subscribe(std::function<void()> listener) {
    {
      MutexLock lock(mutex_);
      if (!fired_) {
        listeners_.emplace(++last_, std::move(listener));
        return last_;
      }
    }
    listener();
    return 0;
  }

  void Unsubscribe(uint64_t handle) {
    MutexLock lock(mutex_);
    listeners_.erase(handle);
  }

  // Idempotent.
  void Fire() {
    std::map<uint64_t, std::function<void()>> listeners;
    {
      MutexLock lock(mutex_);
      fired_ = true;
      listeners.swap(listeners_);
    }
    for (auto& [handle, listener] : listeners) listener();
  }

  bool fired() const {
    MutexLock lock(mutex_);
    return fired_;
  }

 private:
  mutable Mutex mutex_;
  bool fired_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, std::function<void()>> listeners_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace latchd
