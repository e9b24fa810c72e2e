#include "tests/server/fake_attention.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace latchd {

FakeAttention::~FakeAttention() { Drain(absl::InfinitePast()); }

absl::StatusOr<AttentionSessionInfo> FakeAttention::Info(SessionId id) const {
  const auto it = sessions_.find(id);
  if (it == sessions_.end()) return absl::NotFoundError(absl::StrCat("no session ", id));
  AttentionSessionInfo info = it->second;
  if (const auto p = poisoned.find(id); p != poisoned.end()) info.violation = p->second;
  return info;
}

absl::StatusOr<AttentionSessionInfo> FakeAttention::OpenAttention(AttentionConfig config) {
  std::function<void()> hook;
  {
    std::lock_guard<std::mutex> lock(mutex);
    hook = opening;
  }
  if (hook) hook();
  std::lock_guard<std::mutex> lock(mutex);
  if (!open_error.ok()) return open_error;
  AttentionSessionInfo info;
  info.id = ++last_;
  info.lengths.assign(static_cast<size_t>(config.layers * config.batch), 0);
  info.signature = "attention puppet";
  info.kv_bytes = 4096;
  info.config = std::make_shared<AttentionConfig>(std::move(config));
  sessions_[info.id] = info;
  return info;
}

absl::StatusOr<AttentionSessionInfo> FakeAttention::GetAttention(SessionId id) {
  std::lock_guard<std::mutex> lock(mutex);
  return Info(id);
}

std::vector<AttentionSessionInfo> FakeAttention::ListAttention() {
  std::lock_guard<std::mutex> lock(mutex);
  std::vector<AttentionSessionInfo> out;
  for (const auto& [id, info] : sessions_) out.push_back(*Info(id));
  return out;
}

absl::StatusOr<AttentionSessionInfo> FakeAttention::ForkAttention(SessionId id) {
  std::lock_guard<std::mutex> lock(mutex);
  auto info = Info(id);
  if (!info.ok()) return info;
  info->id = ++last_;
  sessions_[info->id] = *info;
  return info;
}

absl::StatusOr<AttentionSessionInfo> FakeAttention::TruncateAttention(SessionId id,
                                                                      int64_t length) {
  std::lock_guard<std::mutex> lock(mutex);
  if (const auto it = sessions_.find(id); it != sessions_.end()) {
    std::fill(it->second.lengths.begin(), it->second.lengths.end(), length);
  }
  poisoned.erase(id);
  return Info(id);
}

absl::StatusOr<AttentionSessionInfo> FakeAttention::ClearAttentionLatch(SessionId id) {
  std::lock_guard<std::mutex> lock(mutex);
  poisoned.erase(id);
  return Info(id);
}

absl::Status FakeAttention::CloseAttention(SessionId id) {
  std::lock_guard<std::mutex> lock(mutex);
  if (id > last_) return absl::NotFoundError(absl::StrCat("no session ", id));
  sessions_.erase(id);
  closed.push_back(id);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const AttentionConfig>> FakeAttention::AttentionConfigOf(
    SessionId id) const {
  std::lock_guard<std::mutex> lock(mutex);
  ++lookups;
  auto info = Info(id);
  if (!info.ok()) return info.status();
  return info->config;
}

void FakeAttention::AttentionStep(AttentionCall call,
                                  std::function<void(absl::StatusOr<AttentionResult>)> done) {
  Submit(std::move(call), true, std::move(done));
}

void FakeAttention::AttentionPrefill(AttentionCall call,
                                     std::function<void(absl::StatusOr<AttentionResult>)> done) {
  Submit(std::move(call), false, std::move(done));
}

void FakeAttention::Submit(AttentionCall call, bool captured,
                           std::function<void(absl::StatusOr<AttentionResult>)> done) {
  std::lock_guard<std::mutex> lock(mutex);
  AttentionCall kept = call;
  kept.query = kept.key = kept.value = kept.past_key = kept.past_value = {};
  calls.push_back(std::move(kept));
  Work work = [this, call = std::move(call), captured,
               done = std::move(done)](const absl::Status& refused) {
    if (!refused.ok()) return done(refused);
    AttentionResult result;
    {
      std::lock_guard<std::mutex> lock(mutex);
      const auto info = Info(call.session);
      if (info.ok()) {
        sessions_[call.session].steps += 1;
        result.violation = info->violation;
      }
    }
    if (call.want_present) result.present_key = result.present_value = std::string(16, 'p');
    result.output = std::string(call.query);
    result.metadata_variant = "separate";
    result.prep_variant = "fused";
    result.attention_variant = captured ? "decode" : "flash";
    result.captured = captured;
    result.timings.device = absl::Microseconds(5);
    done(std::move(result));
  };
  if (hold) {
    held_.push_back(std::move(work));
    changed.notify_all();
  } else {
    Start(std::move(work), absl::OkStatus());
  }
}

void FakeAttention::Start(Work work, absl::Status refused) {
  ++running_;
  loop_.Run([this, work = std::move(work), refused = std::move(refused)] {
    work(refused);
    std::lock_guard<std::mutex> lock(mutex);
    --running_;
    changed.notify_all();
  });
}

size_t FakeAttention::held() {
  std::lock_guard<std::mutex> lock(mutex);
  return held_.size();
}

void FakeAttention::Answer(size_t index) {
  std::lock_guard<std::mutex> lock(mutex);
  Work work = held_.at(index);
  held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(index));
  Start(std::move(work), absl::OkStatus());
}

bool FakeAttention::WaitForHeld(size_t count) {
  std::unique_lock<std::mutex> lock(mutex);
  return changed.wait_for(lock, std::chrono::seconds(10), [&] { return held_.size() >= count; });
}

void FakeAttention::Drain(absl::Time deadline) {
  std::unique_lock<std::mutex> lock(mutex);
  const auto idle = [this] { return held_.empty() && running_ == 0; };
  changed.wait_until(lock, absl::ToChronoTime(std::max(deadline, absl::Now())), idle);
  for (Work& work : held_) Start(std::move(work), absl::CancelledError("the puppet drains"));
  held_.clear();
  changed.wait(lock, idle);
}

absl::StatusOr<std::string> FakeAttention::ExportAttention(SessionId id) {
  std::lock_guard<std::mutex> lock(mutex);
  auto info = Info(id);
  if (!info.ok()) return info.status();
  return file;
}

absl::StatusOr<AttentionSessionInfo> FakeAttention::ImportAttention(SessionId id,
                                                                    std::string_view data) {
  std::lock_guard<std::mutex> lock(mutex);
  imported = std::string(data);
  return Info(id);
}

}  // namespace latchd
