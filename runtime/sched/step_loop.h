#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/kv/kv_cache.h"
#include "runtime/obs/metrics.h"
#include "runtime/sched/request.h"
#include "runtime/sched/session.h"
#include "runtime/sched/step_runner.h"

namespace latchd {

struct StepLoopOptions {
  int64_t vocab = 0;
  absl::Duration default_ttl;
  SessionId first_session_id = 1;
  std::function<absl::Time()> now = absl::Now;  // injected in tests
};

// Sessions, requests and turns of work. One turn is at most one decode step over the sessions that
// wait for one, and one prompt chunk. Not thread-safe: every call is made by the one thread that
// runs the loop (see LoopThread), and callbacks are called on it.
class StepLoop {
 public:
  // `tokenizer` may be null. All references must outlive the loop.
  StepLoop(const StepLoopOptions& options, StepRunner& runner, KvCache& kv,
           const Tokenizer* tokenizer, Metrics& metrics);
  ~StepLoop();

  absl::StatusOr<SessionInfo> Open(const SessionOptions& options);
  absl::StatusOr<SessionInfo> Get(SessionId id);
  std::vector<SessionInfo> List();
  absl::StatusOr<SessionInfo> ClearLatch(SessionId id);
  absl::StatusOr<SessionInfo> Truncate(SessionId id, int64_t length);
  absl::Status Close(SessionId id);
  absl::Status SetFault(const FaultRequest& fault);
  absl::StatusOr<std::string> KvDigest(SessionId id);

  // Takes the request; its `done` is called now when it is refused, or in a later turn.
  void Submit(std::unique_ptr<Request> request);
  // Ends a request that was never let in.
  void Refuse(std::unique_ptr<Request> request, const absl::Status& status);
  void Cancel(RequestId id);
  void CancelAll();

  // One turn. Returns false when there was nothing to do.
  bool Turn();
  // When the next turn is due without new work: a deadline or a session's TTL.
  absl::Time NextDue() const;

  size_t requests() const { return requests_.size(); }
  size_t sessions() const { return sessions_.size(); }
  absl::Time last_good_step() const { return last_good_step_; }
  const absl::Status& fault() const { return fault_; }

 private:
  Session* Find(SessionId id);
  bool WasOpen(SessionId id) const;
  absl::Status NotFound(SessionId id) const;
  absl::Status CheckIdle(const Session& session) const;
  absl::Status RestoreDeviceState(Session& session);
  SessionInfo Info(const Session& session) const;

  absl::Status Check(const Request& request, const Session& session) const;
  void Start(Request& request, Session& session);
  void Expire();
  bool DecodeTurn();
  bool PrefillTurn();
  StepRow DecodeRow(const Request& request, const Session& session) const;
  absl::Status SyncSampling(Session& session, int32_t top_logprobs);

  // Applies a row's result to the session. Returns the violation, if any.
  std::optional<Violation> Apply(Session& session, const RowResult& row, int64_t appended_tokens);
  Sampled ToSampled(const RowResult& row) const;
  void OnStep(Request& request, Session& session, const RowResult& row, int32_t row_index,
              absl::Duration device);
  void OnPrefilled(Request& request, Session& session, const RowResult& row);
  void OnGenerated(Request& request, Session& session, Sampled sampled, absl::Duration device);
  void Violated(Request& request, Violation violation);
  void Finish(Request& request, FinishReason reason, const std::string& matched_stop = "",
              std::optional<Violation> violation = std::nullopt);
  void Fail(Request& request, const absl::Status& status);
  void Retire(Request& request);
  void DeviceFault(const absl::Status& status);
  void UpdateGauges();

  const StepLoopOptions options_;
  StepRunner& runner_;
  KvCache& kv_;
  const Tokenizer* tokenizer_;
  Metrics& metrics_;

  absl::flat_hash_map<SessionId, std::unique_ptr<Session>> sessions_;
  absl::flat_hash_map<RequestId, std::unique_ptr<Request>> requests_;
  std::deque<Request*> decode_queue_;   // waiting for their next step, in order of arrival
  std::deque<Request*> prefill_queue_;  // the front one is being prefilled
  SessionId next_session_id_;
  absl::Time last_good_step_ = absl::InfinitePast();
  absl::Time gauges_due_ = absl::InfinitePast();
  absl::Status fault_;  // the first device fault; later device state is unknowable, so every
                        // request after it fails
};

}  // namespace latchd
