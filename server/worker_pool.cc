#include "server/worker_pool.h"

#include <utility>

namespace latchd {

WorkerPool::WorkerPool(int threads, size_t max_queued) : max_queued_(max_queued) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Work(); });
}

WorkerPool::~WorkerPool() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

bool WorkerPool::TryRun(std::function<void()> task) {
  {
    MutexLock lock(mutex_);
    if (queue_.size() >= max_queued_) return false;
    queue_.push_back(std::move(task));
  }
  wake_.NotifyOne();
  return true;
}

void WorkerPool::Run(std::function<void()> task) {
  {
    MutexLock lock(mutex_);
    queue_.push_back(std::move(task));
  }
  wake_.NotifyOne();
}

void WorkerPool::Work() {
  while (true) {
    std::function<void()> task;
    {
      MutexLock lock(mutex_);
      while (!stopping_ && queue_.empty()) wake_.Wait(mutex_);
      if (queue_.empty()) return;
      task = std::move(queue_.front());
      queue_.pop_front();
    }
    task();
  }
}

}  // namespace latchd
