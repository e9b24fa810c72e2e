#include "kernels/cpu/worker_team.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

namespace latchd::cpu {
namespace {

// How long an idle helper looks for the next region before it sleeps: regions of one step follow
// each other within microseconds, and waking a sleeper costs more than that.
constexpr auto kSpin = std::chrono::microseconds(50);
constexpr int kChecksBetweenClockReads = 64;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

class WorkerTeam {
 public:
  ~WorkerTeam() { Stop(); }

  int threads() const { return static_cast<int>(helpers_.size()) + 1; }

  void Resize(int threads) {
    std::lock_guard<std::mutex> lock(region_);
    if (threads <= 0) threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    if (threads == this->threads()) return;
    Stop();
    stopping_.store(false);
    for (int i = 1; i < threads; ++i) helpers_.emplace_back([this, i] { Help(i); });
  }

  void Run(int64_t pieces, int threads, Piece run, const void* context) {
    std::unique_lock<std::mutex> lock(region_, std::try_to_lock);
    if (!lock.owns_lock() || threads <= 1 || helpers_.empty()) {
      for (int64_t piece = 0; piece < pieces; ++piece) run(context, piece, 0);
      return;
    }
    run_ = run;
    context_ = context;
    threads_.store(threads, std::memory_order_relaxed);
    unfinished_.store(pieces, std::memory_order_relaxed);
    ++region_number_;
    // Publishes the fields above to whoever takes a piece.
    work_.store(Work(region_number_, pieces), std::memory_order_release);
    calls_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) > 0) calls_.notify_all();

    TakePieces(region_number_, 0);
    while (unfinished_.load(std::memory_order_acquire) != 0) Pause();
  }

 private:
  // One word says which region it is and how many pieces nobody has taken yet, so that taking a
  // piece proves that the region is still open: a helper that was asleep for long can not take a
  // piece of a later region by mistake.
  static uint64_t Work(uint32_t region, int64_t left) {
    return (uint64_t{region} << 32) | static_cast<uint64_t>(left);
  }

  void TakePieces(uint32_t region, int thread) {
    uint64_t work = work_.load(std::memory_order_acquire);
    while (static_cast<uint32_t>(work >> 32) == region) {
      const int64_t left = static_cast<int64_t>(work & 0xffffffffu);
      if (left == 0) return;
      if (!work_.compare_exchange_weak(work, Work(region, left - 1), std::memory_order_acq_rel)) {
        continue;
      }
      run_(context_, left - 1, thread);
      unfinished_.fetch_sub(1, std::memory_order_release);
      work = work_.load(std::memory_order_acquire);
    }
  }

  void Help(int thread) {
    uint32_t seen = 0;
    while (!stopping_.load(std::memory_order_acquire)) {
      seen = AwaitCall(seen);
      const auto region = static_cast<uint32_t>(work_.load(std::memory_order_acquire) >> 32);
      // Read after `region`: a limit of a later region comes with a piece-taking that finds its
      // region gone.
      if (thread < threads_.load(std::memory_order_relaxed)) TakePieces(region, thread);
    }
  }

  uint32_t AwaitCall(uint32_t seen) {
    const auto start = std::chrono::steady_clock::now();
    for (int checks = 1;; ++checks) {
      const uint32_t calls = calls_.load(std::memory_order_acquire);
      if (calls != seen) return calls;
      Pause();
      if (checks % kChecksBetweenClockReads == 0 &&
          std::chrono::steady_clock::now() - start > kSpin)
        break;
    }
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    calls_.wait(seen, std::memory_order_seq_cst);
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    return calls_.load(std::memory_order_acquire);
  }

  void Stop() {
    stopping_.store(true);
    calls_.fetch_add(1);
    calls_.notify_all();
    for (std::thread& helper : helpers_) helper.join();
    helpers_.clear();
  }

  std::mutex region_;  // held by the caller of the open region
  std::vector<std::thread> helpers_;
  std::atomic<bool> stopping_{false};
  std::atomic<uint32_t> calls_{0};  // rises with every region: what idle helpers watch
  std::atomic<int> sleepers_{0};
  uint32_t region_number_ = 0;

  Piece run_ = nullptr;
  const void* context_ = nullptr;
  std::atomic<int> threads_{0};
  alignas(64) std::atomic<uint64_t> work_{0};
  alignas(64) std::atomic<int64_t> unfinished_{0};
};

WorkerTeam& Team() {
  static WorkerTeam team;
  return team;
}

}  // namespace

void SetThreads(int threads) { Team().Resize(threads); }
int Threads() { return Team().threads(); }

void RunPieces(int64_t pieces, int threads, Piece run, const void* context) {
  Team().Run(pieces, threads, run, context);
}

}  // namespace latchd::cpu
