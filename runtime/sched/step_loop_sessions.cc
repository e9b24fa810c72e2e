// The session half of StepLoop: open, look up, clear, truncate, close, faults.
//
// Whatever changes a session is refused while a request runs on it; that request alone may. Close
// is the exception: it ends the request first.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/sched/step_loop.h"

namespace latchd {

Session* StepLoop::Find(SessionId id) {
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : found->second.get();
}

// Ids rise and are never reused, not even by the next daemon (they begin at its start time), so an
// id tells a client whether its session expired or belongs to another process.
bool StepLoop::WasOpen(SessionId id) const {
  return id >= options_.first_session_id && id < next_session_id_;
}

absl::Status StepLoop::NotFound(SessionId id) const {
  return absl::NotFoundError(
      absl::StrCat("session_id: ", id, WasOpen(id) ? " is closed" : " was never opened here"));
}

absl::Status StepLoop::CheckIdle(const Session& session) const {
  if (session.running == nullptr) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("session ", session.info.id, " is busy with request ",
                                         session.running->id, ": wait for it or cancel it"));
}

SessionInfo StepLoop::Info(const Session& session) const {
  SessionInfo info = session.info;
  // An idle session's state is derived here, so that no path which ends a request can forget it.
  info.sampling = session.sampling;
  if (session.running == nullptr)
    info.state = session.poisoned() ? SessionState::kPoisoned : SessionState::kIdle;
  return info;
}

absl::StatusOr<SessionInfo> StepLoop::Open(const SessionOptions& options) {
  if (!fault_.ok()) return fault_;
  const int64_t longest = kv_.layout().max_capacity_tokens;
  const int64_t capacity = options.capacity_tokens == 0 ? longest : options.capacity_tokens;
  if (capacity < 1 || capacity > longest) {
    return absl::InvalidArgumentError(absl::StrCat("capacity_tokens: expected 1..", longest,
                                                   " (0 = ", longest, "), got ",
                                                   options.capacity_tokens));
  }
  if (absl::Status status = CheckSampling(options.sampling, options_.vocab); !status.ok())
    return status;
  // Pages for the whole capacity are taken now: a session that was opened cannot fail in the middle
  // of a text for lack of KV memory.
  absl::StatusOr<int32_t> slot = kv_.Open(capacity);
  if (!slot.ok()) return slot.status();

  auto session = std::make_unique<Session>();
  session->slot = *slot;
  session->sampling = options.sampling;
  session->info = {.id = next_session_id_++,
                   .capacity_tokens = capacity,
                   .ttl = options.ttl == absl::ZeroDuration() ? options_.default_ttl : options.ttl,
                   .created = options_.now(),
                   .last_used = options_.now(),
                   .owner = options.owner};
  const SessionInfo info = Info(*session);
  sessions_[info.id] = std::move(session);
  return info;
}

absl::StatusOr<SessionInfo> StepLoop::Get(SessionId id) {
  const Session* session = Find(id);
  if (session == nullptr) return NotFound(id);
  return Info(*session);
}

std::vector<SessionInfo> StepLoop::List() {
  std::vector<SessionInfo> list;
  for (const auto& [id, session] : sessions_) list.push_back(Info(*session));
  std::sort(list.begin(), list.end(),
            [](const SessionInfo& a, const SessionInfo& b) { return a.id < b.id; });
  return list;
}

// Clears the latch, and puts back what fault injection may have bent. The host's copy is
// cleared last: if an upload fails, the client still sees a poisoned session.
absl::Status StepLoop::RestoreDeviceState(Session& session) {
  absl::Status status = kv_.ClearLatch(session.slot);
  if (status.ok()) status = kv_.WritePageTable(session.slot);
  if (!status.ok()) return status;
  session.info.latch = {};
  session.fault = {};
  session.info.last_used = options_.now();
  return absl::OkStatus();
}

absl::StatusOr<SessionInfo> StepLoop::ClearLatch(SessionId id) {
  Session* session = Find(id);
  if (session == nullptr) return NotFound(id);
  if (absl::Status status = CheckIdle(*session); !status.ok()) return status;
  if (absl::Status status = RestoreDeviceState(*session); !status.ok()) return status;
  return Info(*session);
}

absl::StatusOr<SessionInfo> StepLoop::Truncate(SessionId id, int64_t length) {
  Session* session = Find(id);
  if (session == nullptr) return NotFound(id);
  if (absl::Status status = CheckIdle(*session); !status.ok()) return status;
  if (length < 0 || length > session->info.length_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("length_tokens: expected 0..", session->info.length_tokens, ", got ", length));
  }
  if (absl::Status status = RestoreDeviceState(*session); !status.ok()) return status;
  session->info.length_tokens = length;
  // It was sampled after tokens that are gone. The KV rows beyond `length` may stay: no step reads
  // past the length that it is given.
  session->info.next_token.reset();
  return Info(*session);
}

absl::Status StepLoop::Close(SessionId id) {
  Session* session = Find(id);
  // Closing twice is fine, and so is closing what the TTL has closed.
  if (session == nullptr) return WasOpen(id) ? absl::OkStatus() : NotFound(id);
  // The request's callback comes before Close returns, while its session can still be found.
  if (session->running != nullptr) Cancel(session->running->id);
  kv_.Close(session->slot);
  sessions_.erase(id);
  return absl::OkStatus();
}

absl::Status StepLoop::SetFault(const FaultRequest& fault) {
  Session* session = Find(fault.session);
  if (session == nullptr) return NotFound(fault.session);
  if (absl::Status status = CheckIdle(*session); !status.ok()) return status;
  session->fault = {fault.seqlens_k, fault.position, fault.token};
  // The other faults wait for the next step's row; a page-table entry is on the device already.
  if (!fault.page) return absl::OkStatus();
  if (session->room() == 0)
    return absl::FailedPreconditionError("page: the session has no page for a next token");
  return kv_.CorruptPageTable(session->slot, session->info.length_tokens, *fault.page);
}

absl::StatusOr<std::string> StepLoop::KvDigest(SessionId id) {
  Session* session = Find(id);
  if (session == nullptr) return NotFound(id);
  if (absl::Status status = CheckIdle(*session); !status.ok()) return status;
  return kv_.Digest(session->slot, session->info.length_tokens);
}

}  // namespace latchd
