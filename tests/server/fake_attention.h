#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/attention/attention_engine.h"
#include "server/worker_pool.h"

namespace latchd {

// A puppet at AttentionEngine's seam. Calls are answered from a loop thread of its own, only when
// the test lets them: the output is the query's bytes, read at the time of the answer, so that a
// message freed too early shows. Test-only.
class FakeAttention final : public AttentionEngine {
 public:
  ~FakeAttention() override;

  // Guarded by `mutex`, as the rest.
  mutable std::mutex mutex;
  std::condition_variable changed;
  bool hold = false;                        // Step and Prefill wait for Answer
  std::map<SessionId, Violation> poisoned;  // reported by Step and Prefill
  std::vector<SessionId> closed;
  mutable uint64_t lookups = 0;      // of AttentionConfigOf
  std::vector<AttentionCall> calls;  // views dropped
  std::string file = "caches";       // what Export returns
  std::string imported;
  absl::Status open_error;
  std::function<void()> opening;  // runs inside OpenAttention

  size_t held();
  void Answer(size_t index);  // of the held calls, in the order they came
  bool WaitForHeld(size_t count);
  // Ends as FakeEngine::Drain does: what is held at the deadline is refused.
  void Drain(absl::Time deadline);

  absl::StatusOr<AttentionSessionInfo> OpenAttention(AttentionConfig config) override;
  absl::StatusOr<AttentionSessionInfo> GetAttention(SessionId id) override;
  std::vector<AttentionSessionInfo> ListAttention() override;
  absl::StatusOr<AttentionSessionInfo> ForkAttention(SessionId id) override;
  absl::StatusOr<AttentionSessionInfo> TruncateAttention(SessionId id, int64_t length) override;
  absl::StatusOr<AttentionSessionInfo> ClearAttentionLatch(SessionId id) override;
  absl::Status CloseAttention(SessionId id) override;
  absl::StatusOr<std::shared_ptr<const AttentionConfig>> AttentionConfigOf(
      SessionId id) const override;
  void AttentionStep(AttentionCall call,
                     std::function<void(absl::StatusOr<AttentionResult>)> done) override;
  void AttentionPrefill(AttentionCall call,
                        std::function<void(absl::StatusOr<AttentionResult>)> done) override;
  absl::StatusOr<std::string> ExportAttention(SessionId id) override;
  absl::StatusOr<AttentionSessionInfo> ImportAttention(SessionId id,
                                                       std::string_view file) override;

 private:
  using Work = std::function<void(const absl::Status& refused)>;

  void Submit(AttentionCall call, bool captured,
              std::function<void(absl::StatusOr<AttentionResult>)> done);
  void Start(Work work, absl::Status refused);                    // REQUIRES: mutex
  absl::StatusOr<AttentionSessionInfo> Info(SessionId id) const;  // REQUIRES: mutex

  std::map<SessionId, AttentionSessionInfo> sessions_;
  SessionId last_ = 0;
  std::deque<Work> held_;
  int running_ = 0;
  WorkerPool loop_{1, 1 << 20};
};

}  // namespace latchd
