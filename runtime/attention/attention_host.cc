#include "runtime/attention/attention_host.h"

#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "runtime/attention/attention_file.h"

namespace latchd {
namespace {

absl::Status Draining() { return absl::UnavailableError("the daemon is draining"); }

absl::Status Unknown(SessionId id) {
  return absl::NotFoundError(absl::StrCat("session_id: no attention session ", id));
}

}  // namespace

template <typename T, typename F>
T AttentionHost::Ask(F&& question) {
  std::promise<T> answer;
  if (!post_([&] { answer.set_value(question()); })) return T(Draining());
  return answer.get_future().get();
}

AttentionSessionInfo AttentionHost::InfoOf(const Entry& entry) {
  const AttentionSession& session = *entry.session;
  return {.id = entry.id,
          .config = session.shared_config(),
          .signature = session.signature().ToString(),
          .kv_bytes = session.kv_bytes(),
          .steps = session.steps(),
          .busy = false,
          .violation = session.violation(),
          .lengths = session.lengths(),
          .idle = absl::Now() - entry.used};
}

absl::StatusOr<AttentionHost::Entry*> AttentionHost::Find(SessionId id) {
  const absl::Time now = absl::Now();
  CloseIdle(now);
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return Unknown(id);
  found->second.used = now;
  return &found->second;
}

void AttentionHost::CloseIdle(absl::Time now) {
  for (auto it = sessions_.begin(); it != sessions_.end();) {
    const AttentionConfig& config = it->second.session->config();
    const absl::Duration ttl = config.ttl > absl::ZeroDuration() ? config.ttl : limits_.default_ttl;
    if (now - it->second.used < ttl) {
      ++it;
      continue;
    }
    used_bytes_ -= AttentionSession::DeviceBytes(config);
    MutexLock lock(mutex_);
    configs_.erase(it->first);
    it = sessions_.erase(it);
  }
}

absl::StatusOr<AttentionSessionInfo> AttentionHost::Open(
    std::shared_ptr<const AttentionConfig> config) {
  const absl::Time now = absl::Now();
  CloseIdle(now);
  if (static_cast<int64_t>(sessions_.size()) >= limits_.max_sessions) {
    return absl::ResourceExhaustedError(
        absl::StrCat("attention sessions: all ", limits_.max_sessions,
                     " are open; close one, or raise --max-sessions"));
  }
  const size_t bytes = AttentionSession::DeviceBytes(*config);
  if (bytes > limits_.memory_bytes - used_bytes_) {
    return absl::ResourceExhaustedError(absl::StrCat("attention memory: the session needs ", bytes,
                                                     " bytes, ", limits_.memory_bytes - used_bytes_,
                                                     " of --attention-memory ",
                                                     limits_.memory_bytes, " are free"));
  }
  auto session = AttentionSession::Create(config, device_);
  if (!session.ok()) return session.status();
  used_bytes_ += bytes;
  const SessionId id = next_id_++;
  {
    MutexLock lock(mutex_);
    configs_[id] = std::move(config);
  }
  Entry& entry = sessions_[id];
  entry = {.id = id, .session = *std::move(session), .used = now};
  return InfoOf(entry);
}

absl::StatusOr<AttentionSessionInfo> AttentionHost::OpenAttention(AttentionConfig config) {
  auto shared = std::make_shared<const AttentionConfig>(std::move(config));
  return Ask<absl::StatusOr<AttentionSessionInfo>>([&] { return Open(shared); });
}

absl::StatusOr<AttentionSessionInfo> AttentionHost::GetAttention(SessionId id) {
  return Ask<absl::StatusOr<AttentionSessionInfo>>([&]() -> absl::StatusOr<AttentionSessionInfo> {
    const auto found = sessions_.find(id);  // looking is not using
    if (found == sessions_.end()) return Unknown(id);
    return InfoOf(found->second);
  });
}

std::vector<AttentionSessionInfo> AttentionHost::ListAttention() {
  using Infos = absl::StatusOr<std::vector<AttentionSessionInfo>>;
  Infos infos = Ask<Infos>([&]() -> Infos {
    CloseIdle(absl::Now());
    std::vector<AttentionSessionInfo> all;
    for (const auto& [id, entry] : sessions_) all.push_back(InfoOf(entry));
    return all;
  });
  return infos.ok() ? *std::move(infos) : std::vector<AttentionSessionInfo>();
}

absl::StatusOr<AttentionSessionInfo> AttentionHost::ForkAttention(SessionId id) {
  return Ask<absl::StatusOr<AttentionSessionInfo>>([&]() -> absl::StatusOr<AttentionSessionInfo> {
    auto entry = Find(id);
    if (!entry.ok()) return entry.status();
    auto opened = Open((*entry)->session->shared_config());
    if (!opened.ok()) return opened.status();
    Entry& fork = sessions_[opened->id];
    if (absl::Status status = fork.session->CopyFrom(*(*entry)->session); !status.ok())
      return status;
    return InfoOf(fork);
  });
}

absl::StatusOr<AttentionSessionInfo> AttentionHost::TruncateAttention(SessionId id,
                                                                      int64_t length) {
  return Ask<absl::StatusOr<AttentionSessionInfo>>([&]() -> absl::StatusOr<AttentionSessionInfo> {
    auto entry = Find(id);
    if (!entry.ok()) return entry.status();
    if (absl::Status status = (*entry)->session->Truncate(length); !status.ok()) return status;
    return InfoOf(**entry);
  });
}

absl::StatusOr<AttentionSessionInfo> AttentionHost::ClearAttentionLatch(SessionId id) {
  return Ask<absl::StatusOr<AttentionSessionInfo>>([&]() -> absl::StatusOr<AttentionSessionInfo> {
    auto entry = Find(id);
    if (!entry.ok()) return entry.status();
    if (absl::Status status = (*entry)->session->ClearLatch(); !status.ok()) return status;
    return InfoOf(**entry);
  });
}

absl::Status AttentionHost::CloseAttention(SessionId id) {
  return Ask<absl::Status>([&]() -> absl::Status {
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) {
      const bool was_open = id >= limits_.first_session_id && id < next_id_;
      return was_open ? absl::OkStatus() : Unknown(id);
    }
    used_bytes_ -= AttentionSession::DeviceBytes(found->second.session->config());
    sessions_.erase(found);
    MutexLock lock(mutex_);
    configs_.erase(id);
    return absl::OkStatus();
  });
}

absl::StatusOr<std::shared_ptr<const AttentionConfig>> AttentionHost::AttentionConfigOf(
    SessionId id) const {
  MutexLock lock(mutex_);
  const auto found = configs_.find(id);
  if (found == configs_.end()) return Unknown(id);
  return found->second;
}

void AttentionHost::Submit(AttentionCall call, Run run,
                           std::function<void(absl::StatusOr<AttentionResult>)> done) {
  const absl::Time submitted = absl::Now();
  auto shared =
      std::make_shared<std::function<void(absl::StatusOr<AttentionResult>)>>(std::move(done));
  const bool posted = post_([this, call = std::move(call), run, shared, submitted] {
    const absl::Time begin = absl::Now();
    if (call.deadline < begin) {
      return (*shared)(absl::DeadlineExceededError("the deadline passed before the call ran"));
    }
    auto entry = Find(call.session);
    if (!entry.ok()) return (*shared)(entry.status());
    auto result = ((*entry)->session.get()->*run)(call);
    if (result.ok()) {
      result->timings.queued = begin - submitted;
      last_good_call_ = absl::Now();
    }
    (*shared)(std::move(result));
  });
  if (!posted) (*shared)(Draining());
}

void AttentionHost::AttentionStep(AttentionCall call,
                                  std::function<void(absl::StatusOr<AttentionResult>)> done) {
  Submit(std::move(call), &AttentionSession::Step, std::move(done));
}

void AttentionHost::AttentionPrefill(AttentionCall call,
                                     std::function<void(absl::StatusOr<AttentionResult>)> done) {
  Submit(std::move(call), &AttentionSession::Prefill, std::move(done));
}

absl::StatusOr<std::string> AttentionHost::ExportAttention(SessionId id) {
  return Ask<absl::StatusOr<std::string>>([&]() -> absl::StatusOr<std::string> {
    auto entry = Find(id);
    if (!entry.ok()) return entry.status();
    return WriteAttentionFile(*(*entry)->session);
  });
}

absl::StatusOr<AttentionSessionInfo> AttentionHost::ImportAttention(SessionId id,
                                                                    std::string_view file) {
  return Ask<absl::StatusOr<AttentionSessionInfo>>([&]() -> absl::StatusOr<AttentionSessionInfo> {
    auto entry = Find(id);
    if (!entry.ok()) return entry.status();
    if (absl::Status status = ReadAttentionFile(file, *(*entry)->session); !status.ok())
      return status;
    return InfoOf(**entry);
  });
}

}  // namespace latchd
