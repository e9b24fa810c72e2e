#pragma once

#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"

namespace latchd {

// std::mutex under the names that clang's -Wthread-safety can judge. Not absl::Mutex: it lives in a
// shared library of the distribution that ThreadSanitizer cannot see into, and every hand-over
// under it would be reported as a race.
class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) {
    mutex_.Lock();
  }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Wakes spuriously, as every condition variable does: wait in a loop over the condition.
class CondVar {
 public:
  void Wait(Mutex& mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    wake_.wait(lock);
    lock.release();  // the caller still holds it
  }
  // False once `deadline` has passed.
  template <typename TimePoint>
  bool WaitUntil(Mutex& mutex, const TimePoint& deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const std::cv_status status = wake_.wait_until(lock, deadline);
    lock.release();
    return status == std::cv_status::no_timeout;
  }
  void NotifyOne() { wake_.notify_one(); }
  void NotifyAll() { wake_.notify_all(); }

 private:
  std::condition_variable wake_;
};

}  // namespace latchd
