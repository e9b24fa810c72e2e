#include "tests/server/fake_engine.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace latchd {
namespace {

int32_t TokenAfter(int64_t length) { return 'a' + static_cast<int32_t>(length % 26); }

Sampled SampledAfter(int64_t length, int32_t top, bool logits) {
  Sampled out;
  out.token = TokenAfter(length);
  out.logprob = -0.5f;
  for (int32_t i = 0; i < top; ++i) out.top.push_back({i, -1.0f - static_cast<float>(i)});
  if (logits) out.logits.assign(257, 0.25f);
  return out;
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> FakeTokenizer::Encode(std::string_view text,
                                                           const EncodeOptions& options) const {
  std::vector<int32_t> ids;
  if (options.add_special_tokens) ids.push_back(256);
  for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
  return ids;
}

absl::StatusOr<std::string> FakeTokenizer::Decode(const std::vector<int32_t>& ids,
                                                  bool skip_special) const {
  std::string out;
  for (const int32_t id : ids) out += id == 256 && skip_special ? "" : TokenBytes(id);
  return out;
}

std::string FakeTokenizer::TokenBytes(int32_t id) const {
  if (id == 256) return "<eos>";
  return id >= 0 && id < 256 ? std::string(1, static_cast<char>(id)) : "";
}

struct FakeEngine::Generation {
  RequestId id = 0;
  GenerateRequest request;
  std::function<void(const GeneratedToken&)> on_token;
  std::function<void(const GenerateSummary&)> done;
  int64_t emitted = 0;
  bool cancelled = false;
};

FakeEngine::FakeEngine(std::shared_ptr<Strings> strings) : strings_(std::move(strings)) {
  model_.architecture = "FakeForCausalLM";
  model_.name = "fake";
  model_.vocab = 257;
  model_.context_tokens = 1000;
  model_.eos_tokens = {256};
}

FakeEngine::~FakeEngine() { Drain(absl::InfinitePast()); }

const Tokenizer* FakeEngine::tokenizer() const {
  return strings_->with_tokenizer ? &tokenizer_ : nullptr;
}

EngineStatus FakeEngine::status() const {
  std::lock_guard<std::mutex> lock(strings_->mutex);
  EngineStatus out;
  out.backend = "cpu";
  out.device_name = "puppet";
  out.model_name = "fake";
  out.max_capacity = 1000;
  out.max_sessions = 64;
  out.sessions = static_cast<int64_t>(sessions_.size());
  out.last_good_step = strings_->last_good_step;
  out.fault = strings_->fault;
  out.draining = draining_;
  out.started = absl::Now();
  return out;
}

absl::StatusOr<SessionInfo> FakeEngine::Info(SessionId id) {
  const auto it = sessions_.find(id);
  if (it == sessions_.end()) return absl::NotFoundError(absl::StrCat("no session ", id));
  SessionInfo info = it->second;
  if (const auto latch = strings_->poisoned.find(id); latch != strings_->poisoned.end()) {
    info.latch = latch->second;
    info.state = SessionState::kPoisoned;
  }
  return info;
}

absl::StatusOr<SessionInfo> FakeEngine::OpenSession(const SessionOptions& options) {
  std::lock_guard<std::mutex> lock(strings_->mutex);
  if (!strings_->open_error.ok()) return strings_->open_error;
  strings_->opened.push_back(options);
  SessionInfo info;
  info.id = ++last_session_;
  info.capacity_tokens = options.capacity_tokens > 0 ? options.capacity_tokens : 1000;
  info.sampling = options.sampling;
  info.ttl = options.ttl;
  info.owner = options.owner;
  info.created = info.last_used = absl::Now();
  sessions_[info.id] = info;
  return info;
}

absl::StatusOr<SessionInfo> FakeEngine::GetSession(SessionId id) {
  std::lock_guard<std::mutex> lock(strings_->mutex);
  return Info(id);
}

std::vector<SessionInfo> FakeEngine::ListSessions() {
  std::lock_guard<std::mutex> lock(strings_->mutex);
  std::vector<SessionInfo> out;
  for (const auto& [id, info] : sessions_) out.push_back(*Info(id));
  return out;
}

absl::StatusOr<SessionInfo> FakeEngine::ClearLatch(SessionId id) {
  std::lock_guard<std::mutex> lock(strings_->mutex);
  strings_->poisoned.erase(id);
  return Info(id);
}

absl::StatusOr<SessionInfo> FakeEngine::Truncate(SessionId id, int64_t length_tokens) {
  std::lock_guard<std::mutex> lock(strings_->mutex);
  if (sessions_.count(id)) sessions_[id].length_tokens = length_tokens;
  return Info(id);
}

absl::StatusOr<SessionInfo> FakeEngine::Reset(SessionId id) { return Truncate(id, 0); }

absl::Status FakeEngine::CloseSession(SessionId id) {
  std::lock_guard<std::mutex> lock(strings_->mutex);
  if (id > last_session_) return absl::NotFoundError(absl::StrCat("no session ", id));
  sessions_.erase(id);
  strings_->closed.push_back(id);
  strings_->changed.notify_all();
  return absl::OkStatus();
}

RequestId FakeEngine::Submit(std::shared_ptr<Work> work) {
  std::lock_guard<std::mutex> lock(strings_->mutex);
  work->id = ++last_request_;
  if (draining_) {
    loop_.Run([work] { work->answer(absl::UnavailableError("the puppet drains")); });
    return work->id;
  }
  if (strings_->hold) {
    held_.push_back(work);
    size_t steps = 0;
    for (const auto& held : held_) steps += held->is_step;
    strings_->max_running = std::max(strings_->max_running, steps);
    strings_->changed.notify_all();
  } else {
    running_[work->id] = work;
    loop_.Run([this, work] { Complete(work); });
  }
  return work->id;
}

void FakeEngine::Complete(const std::shared_ptr<Work>& work) {
  work->answer(work->cancelled ? absl::CancelledError("cancelled") : absl::OkStatus());
  std::lock_guard<std::mutex> lock(strings_->mutex);
  running_.erase(work->id);
  strings_->changed.notify_all();
}

size_t FakeEngine::held() {
  std::lock_guard<std::mutex> lock(strings_->mutex);
  return held_.size();
}

void FakeEngine::Answer(size_t index) {
  std::lock_guard<std::mutex> lock(strings_->mutex);
  const std::shared_ptr<Work> work = held_.at(index);
  held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(index));
  running_[work->id] = work;
  loop_.Run([this, work] { Complete(work); });
}

bool FakeEngine::WaitForHeld(size_t count, absl::Duration timeout) {
  std::unique_lock<std::mutex> lock(strings_->mutex);
  return strings_->changed.wait_for(lock, absl::ToChronoMilliseconds(timeout),
                                    [&] { return held_.size() >= count; });
}

RequestId FakeEngine::Prefill(PrefillRequest request,
                              std::function<void(absl::StatusOr<PrefillResult>)> done) {
  auto work = std::make_shared<Work>();
  work->session = request.session;
  work->answer = [this, request, done](const absl::Status& refused) {
    absl::StatusOr<PrefillResult> result = PrefillResult();
    if (!refused.ok()) result = refused;
    if (refused.ok()) {
      std::lock_guard<std::mutex> lock(strings_->mutex);
      auto info = Info(request.session);
      if (!info.ok()) {
        result = info.status();
      } else {
        PrefillResult good;
        if (info->latch.mask != 0) {
          good.violation = Violation{info->latch, DescribeLatch(info->latch)};
        } else {
          auto& length = sessions_[request.session].length_tokens;
          length += static_cast<int64_t>(request.tokens.size());
          good.length_tokens = length;
          good.next = SampledAfter(length, request.top_logprobs, request.want_logits);
        }
        result = good;
      }
    }
    done(result);
  };
  return Submit(work);
}

RequestId FakeEngine::Step(StepRequest request,
                           std::function<void(absl::StatusOr<StepResult>)> done) {
  auto work = std::make_shared<Work>();
  work->session = request.session;
  work->is_step = true;
  work->answer = [this, request, done](const absl::Status& refused) {
    absl::StatusOr<StepResult> result = StepResult();
    if (!refused.ok()) result = refused;
    if (refused.ok()) {
      std::lock_guard<std::mutex> lock(strings_->mutex);
      auto info = Info(request.session);
      if (!info.ok()) {
        result = info.status();
      } else {
        StepResult good;
        if (info->latch.mask != 0) {
          good.violation = Violation{info->latch, DescribeLatch(info->latch)};
          good.length_tokens = info->length_tokens;
        } else {
          auto& length = sessions_[request.session].length_tokens;
          good.appended_token = request.forced_token.value_or(TokenAfter(length));
          good.length_tokens = ++length;
          good.next = SampledAfter(length, request.top_logprobs, request.want_logits);
          strings_->last_good_step = absl::Now();
        }
        result = good;
      }
    }
    done(result);
  };
  return Submit(work);
}

RequestId FakeEngine::Generate(GenerateRequest request,
                               std::function<void(const GeneratedToken&)> on_token,
                               std::function<void(const GenerateSummary&)> done) {
  auto generation = std::make_shared<Generation>();
  std::lock_guard<std::mutex> lock(strings_->mutex);
  strings_->generates.push_back(request);
  generation->id = ++last_request_;
  generation->request = std::move(request);
  generation->on_token = std::move(on_token);
  generation->done = std::move(done);
  generations_[generation->id] = generation;
  strings_->changed.notify_all();
  loop_.Run([this, generation] { Advance(generation); });
  return generation->id;
}

// One token, or the end; posts itself again.
void FakeEngine::Advance(std::shared_ptr<Generation> generation) {
  std::optional<GeneratedToken> token;
  GenerateSummary summary;
  {
    std::unique_lock<std::mutex> lock(strings_->mutex);
    auto info = Info(generation->request.session);
    if (!info.ok()) {
      summary.reason = FinishReason::kError;
      summary.error = info.status();
    } else if (generation->cancelled) {
      summary.reason = FinishReason::kCancelled;
    } else if (absl::Now() >= generation->request.deadline) {
      summary.reason = FinishReason::kDeadline;
    } else if (info->latch.mask != 0) {
      summary.reason = FinishReason::kViolation;
      summary.violation = Violation{info->latch, DescribeLatch(info->latch)};
    } else if (generation->emitted == generation->request.max_tokens) {
      summary.text = "!";
    } else if (strings_->hold && strings_->tokens_allowed <= 0) {
      // Nothing to do before the test or a cancel says so: look again soon.
      strings_->changed.wait_for(lock, std::chrono::milliseconds(2));
      loop_.Run([this, generation] { Advance(generation); });
      return;
    } else {
      --strings_->tokens_allowed;
      ++generation->emitted;
      token.emplace();
      token->length_tokens = generation->emitted;
      token->sampled = SampledAfter(generation->emitted, generation->request.top_logprobs, false);
      token->text = strings_->token_text;
      strings_->last_good_step = absl::Now();
    }
  }
  if (token) {
    generation->on_token(*token);
    loop_.Run([this, generation] { Advance(generation); });
    return;
  }
  summary.generated_tokens = generation->emitted;
  summary.prompt_tokens = static_cast<int64_t>(generation->request.prompt.size());
  generation->done(summary);
  std::lock_guard<std::mutex> lock(strings_->mutex);
  generations_.erase(generation->id);
  strings_->changed.notify_all();
}

void FakeEngine::Cancel(RequestId id) {
  std::lock_guard<std::mutex> lock(strings_->mutex);
  strings_->cancels.push_back(id);
  if (const auto it = generations_.find(id); it != generations_.end()) it->second->cancelled = true;
  if (const auto it = running_.find(id); it != running_.end()) it->second->cancelled = true;
  for (auto it = held_.begin(); it != held_.end(); ++it) {
    if ((*it)->id != id) continue;
    const std::shared_ptr<Work> work = *it;
    work->cancelled = true;
    held_.erase(it);
    running_[work->id] = work;
    loop_.Run([this, work] { Complete(work); });
    break;
  }
  strings_->changed.notify_all();
}

absl::Status FakeEngine::InjectFault(const FaultRequest& request) {
  std::lock_guard<std::mutex> lock(strings_->mutex);
  if (request.page) strings_->poisoned[request.session] = Latch{kPageTable, kPageTable};
  return absl::OkStatus();
}

absl::StatusOr<std::string> FakeEngine::KvDigest(SessionId id) {
  return absl::StrCat("digest", id);
}

void FakeEngine::Drain(absl::Time deadline) {
  if (strings_->attention != nullptr) strings_->attention->Drain(deadline);
  std::vector<RequestId> rest;
  {
    std::unique_lock<std::mutex> lock(strings_->mutex);
    draining_ = true;
    strings_->changed.wait_until(lock, absl::ToChronoTime(std::max(deadline, absl::Now())),
                                 [this] { return Idle(); });
    for (const auto& work : held_) rest.push_back(work->id);
    for (const auto& [id, generation] : generations_) rest.push_back(id);
  }
  for (const RequestId id : rest) Cancel(id);
  std::unique_lock<std::mutex> lock(strings_->mutex);
  strings_->changed.wait(lock, [this] { return Idle(); });
}

}  // namespace latchd
