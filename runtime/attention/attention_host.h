#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/attention/attention_session.h"
#include "runtime/mutex.h"

namespace latchd {

struct AttentionLimits {
  int64_t max_sessions = 64;
  size_t memory_bytes = 0;  // caches of all sessions together
  absl::Duration default_ttl = absl::Minutes(10);
  SessionId first_session_id = 1;
};

// The attention sessions of one device, behind the thread-safe interface: each call becomes a task
// of the step loop, which owns the device, and runs between two of its turns.
class AttentionHost final : public AttentionEngine {
 public:
  using Task = absl::AnyInvocable<void()>;
  // Runs the task on the step loop's thread, in order. False, without running it: draining.
  using Post = std::function<bool(Task)>;

  // The device must outlive the host; both are destroyed on the step loop's thread.
  AttentionHost(Device& device, const AttentionLimits& limits, Post post)
      : device_(device),
        limits_(limits),
        post_(std::move(post)),
        next_id_(limits.first_session_id) {}

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

  // On the step loop's thread. InfinitePast when there was none.
  absl::Time last_good_call() const { return last_good_call_; }

 private:
  struct Entry {
    SessionId id = 0;
    std::unique_ptr<AttentionSession> session;
    absl::Time used;
  };
  using Run = absl::StatusOr<AttentionResult> (AttentionSession::*)(const AttentionCall&);

  // All below run on the step loop's thread.
  absl::StatusOr<AttentionSessionInfo> Open(std::shared_ptr<const AttentionConfig> config);
  absl::StatusOr<Entry*> Find(SessionId id);
  void CloseIdle(absl::Time now);
  static AttentionSessionInfo InfoOf(const Entry& entry);

  template <typename T, typename F>
  T Ask(F&& question);
  void Submit(AttentionCall call, Run run,
              std::function<void(absl::StatusOr<AttentionResult>)> done);

  Device& device_;
  const AttentionLimits limits_;
  const Post post_;
  std::map<SessionId, Entry> sessions_;  // used on the step loop's thread
  size_t used_bytes_ = 0;
  absl::Time last_good_call_ = absl::InfinitePast();
  SessionId next_id_;  // never reused
  mutable Mutex mutex_;
  std::map<SessionId, std::shared_ptr<const AttentionConfig>> configs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace latchd
