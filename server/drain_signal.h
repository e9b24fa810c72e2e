#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

namespace latchd {

// Tells long-lived streams that the daemon drains. Thread-safe.
class DrainSignal {
 public:
  // `listener` runs once, from Fire or, when that has been, from here. It must not call back into
  // the signal. Returns a handle for Unsubscribe; after that the listener may still be running on
  // another thread, so it must hold what it uses (weak_ptr).
  uint64_t Subscribe(std::function<void()> listener) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!fired_) {
        listeners_.emplace(++last_, std::move(listener));
        return last_;
      }
    }
    listener();
    return 0;
  }

  void Unsubscribe(uint64_t handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    listeners_.erase(handle);
  }

  // Idempotent.
  void Fire() {
    std::map<uint64_t, std::function<void()>> listeners;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      fired_ = true;
      listeners.swap(listeners_);
    }
    for (auto& [handle, listener] : listeners) listener();
  }

  bool fired() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return fired_;
  }

 private:
  mutable std::mutex mutex_;
  bool fired_ = false;
  uint64_t last_ = 0;
  std::map<uint64_t, std::function<void()>> listeners_;
};

}  // namespace latchd
