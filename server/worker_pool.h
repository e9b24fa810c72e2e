#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "runtime/mutex.h"

namespace latchd {

// A few threads for calls that wait for the step loop or take CPU time (session calls, tokenising),
// so that gRPC's own threads never block: those carry every stream's messages. Thread-safe.
class WorkerPool {
 public:
  // At most `max_queued` tasks wait; more are refused by TryRun.
  WorkerPool(int threads, size_t max_queued);
  // Runs what is queued, then joins.
  ~WorkerPool();

  // False, without running it, when the queue is full.
  bool TryRun(std::function<void()> task);
  // For clean-up that must not be lost: never refused.
  void Run(std::function<void()> task);

 private:
  void Work();

  const size_t max_queued_;
  Mutex mutex_;
  CondVar wake_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace latchd
