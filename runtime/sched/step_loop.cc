#include "runtime/sched/step_loop.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace latchd {
namespace {

// Gauges walk over every session, which is too much for every turn of a busy loop.
constexpr absl::Duration kGaugeInterval = absl::Milliseconds(500);

}  // namespace

StepLoop::StepLoop(const StepLoopOptions& options, StepRunner& runner, KvCache& kv,
                   const Tokenizer* tokenizer, Metrics& metrics)
    : options_(options),
      runner_(runner),
      kv_(kv),
      tokenizer_(tokenizer),
      metrics_(metrics),
      next_session_id_(options.first_session_id) {}

// Nobody may wait for ever on a loop that is gone.
StepLoop::~StepLoop() { CancelAll(); }

// The order of the checks is the order in which an answer makes sense: after a device fault nothing
// else is true; a session must exist before it can be busy; and a request that will not run need
// not be judged field by field.
void StepLoop::Submit(std::unique_ptr<Request> owned) {
  Request& request = *owned;
  requests_[request.id] = std::move(owned);
  request.queued = options_.now() - request.submitted;
  metrics_.QueueWait(absl::ToDoubleSeconds(request.queued));
  if (!fault_.ok()) return Fail(request, fault_);
  Session* session = Find(request.session);
  if (session == nullptr) return Fail(request, NotFound(request.session));
  if (absl::Status status = CheckIdle(*session); !status.ok()) return Fail(request, status);
  if (request.deadline <= options_.now()) {
    metrics_.RequestCancelled();
    return Fail(request, absl::DeadlineExceededError("deadline passed in the queue"));
  }
  if (session->poisoned()) {
    // The device would skip the step; its answer is known, so it is given without a launch.
    return Violated(request, {session->info.latch, DescribeLatch(session->info.latch)});
  }
  if (absl::Status status = Check(request, *session); !status.ok()) return Fail(request, status);
  Start(request, *session);
}

void StepLoop::Refuse(std::unique_ptr<Request> owned, const absl::Status& status) {
  Request& request = *owned;
  requests_[request.id] = std::move(owned);
  Fail(request, status);
}

// What can be refused by looking at numbers the host holds. The device checks the same again, but
// there a mistake poisons the session; refused here, it costs the client nothing.
absl::Status StepLoop::Check(const Request& request, const Session& session) const {
  const auto check_token = [&](const std::string& field, int64_t token) {
    if (token >= 0 && token < options_.vocab) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": expected a token id in 0..", options_.vocab - 1, ", got ", token));
  };
  const bool prefills =
      !request.prompt.empty() || request.append_next_token || request.prefill_done;
  if (request.generation != nullptr && request.generation->request.sampling) {
    absl::Status status = CheckSampling(*request.generation->request.sampling, options_.vocab);
    if (!status.ok()) return status;
  }
  if (prefills) {
    if (request.append_next_token && !session.info.next_token) {
      return absl::FailedPreconditionError("append_next_token: the session has no next token");
    }
    if (request.prompt.empty() && !request.append_next_token) {
      return absl::InvalidArgumentError("tokens: expected at least one token, got none");
    }
    for (size_t i = 0; i < request.prompt.size(); ++i) {
      absl::Status status = check_token(absl::StrCat("tokens[", i, "]"), request.prompt[i]);
      if (!status.ok()) return status;
    }
    const int64_t tokens = static_cast<int64_t>(request.prompt.size()) + request.append_next_token;
    if (tokens > session.room()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tokens: expected at most ", session.room(), " (capacity ", session.info.capacity_tokens,
          " less length ", session.info.length_tokens, "), got ", tokens));
    }
    return absl::OkStatus();
  }
  // The device is to judge what the test set wrong.
  if (session.fault.any()) return absl::OkStatus();
  if (request.forced_token) {
    if (absl::Status status = check_token("forced_token_id", *request.forced_token); !status.ok())
      return status;
  } else if (!session.info.next_token) {
    return absl::FailedPreconditionError(
        "the session has no next token: prefill a prompt or force a token");
  }
  // A generation on a full session is no error: it ends at once with kCapacity (see Start).
  if (session.room() == 0 && request.step_done) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the session is full: length ", session.info.length_tokens, " equals its capacity"));
  }
  return absl::OkStatus();
}

// From here the session is the request's alone: `running` makes every other request ABORTED until
// Retire. That is why no lock guards a session, and why a batch never holds two rows of one slot.
void StepLoop::Start(Request& request, Session& session) {
  session.running = &request;
  session.info.last_used = options_.now();
  if (request.generation != nullptr) {
    Generation& generation = *request.generation;
    if (generation.request.sampling) {
      session.sampling = *generation.request.sampling;
      session.sampling_stale = true;
    }
    if (tokenizer_ != nullptr) {
      generation.detokenizer =
          std::make_unique<StreamingDetokenizer>(*tokenizer_, /*skip_special=*/true);
      if (!generation.request.ignore_eos) {
        for (const int32_t token : tokenizer_->eos_tokens()) generation.stop_tokens.insert(token);
      }
    }
    generation.stop_tokens.insert(generation.request.stop_tokens.begin(),
                                  generation.request.stop_tokens.end());
    generation.stop_matcher = StopMatcher(generation.request.stop_strings);
  }
  // The next token is the host's copy of what the slot sampled last; as the prompt's first token it
  // is prefilled like the others. PrefillTurn marks it as generated, which the penalties ask for.
  if (request.append_next_token)
    request.prompt.insert(request.prompt.begin(), *session.info.next_token);

  const bool prefills = !request.prompt.empty();
  const auto next = prefills ? Request::State::kPrefilling : Request::State::kDecoding;
  if (absl::Status status = request.SetState(next); !status.ok()) return Fail(request, status);
  if (prefills) {
    session.info.state = SessionState::kPrefilling;
    prefill_queue_.push_back(&request);
    return;
  }
  session.info.state = request.step_done ? SessionState::kStepping : SessionState::kGenerating;
  if (request.generation != nullptr && session.room() == 0)
    return Finish(request, FinishReason::kCapacity);
  decode_queue_.push_back(&request);
}

// Takes effect between turns, so a session never stops inside a step. A prompt that is cut short
// leaves rows in the KV pages beyond the session's length, where the next prompt writes over them.
void StepLoop::Cancel(RequestId id) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  metrics_.RequestCancelled();
  Request& request = *found->second;
  if (request.generation != nullptr) return Finish(request, FinishReason::kCancelled);
  Fail(request, absl::CancelledError("cancelled; the session's length is exact"));
}

void StepLoop::CancelAll() {
  // By id, because each Cancel erases from the map.
  std::vector<RequestId> ids;
  for (const auto& [id, request] : requests_) ids.push_back(id);
  for (const RequestId id : ids) Cancel(id);
}

// Deadlines end requests, wherever they wait; TTLs end sessions that nobody works on. A poisoned
// session expires like any other, so one that its client forgot gives its KV pages back.
void StepLoop::Expire() {
  const absl::Time now = options_.now();
  std::vector<Request*> late;
  for (const auto& [id, request] : requests_) {
    if (request->deadline <= now) late.push_back(request.get());
  }
  for (Request* request : late) {
    metrics_.RequestCancelled();
    if (request->generation != nullptr) {
      Finish(*request, FinishReason::kDeadline);
    } else {
      Fail(*request, absl::DeadlineExceededError("deadline passed; the session's length is exact"));
    }
  }
  std::vector<SessionId> idle;
  for (const auto& [id, session] : sessions_) {
    if (session->running == nullptr && session->info.last_used + session->info.ttl <= now)
      idle.push_back(id);
  }
  for (const SessionId id : idle) (void)Close(id);
}

absl::Time StepLoop::NextDue() const {
  if (!decode_queue_.empty() || !prefill_queue_.empty()) return absl::InfinitePast();
  absl::Time due = absl::InfiniteFuture();
  for (const auto& [id, request] : requests_) due = std::min(due, request->deadline);
  for (const auto& [id, session] : sessions_) {
    if (session->running == nullptr)
      due = std::min(due, session->info.last_used + session->info.ttl);
  }
  return due;
}

// Decode first: its clients wait for every single token, and one prompt chunk is the longest that a
// turn adds to their wait.
bool StepLoop::Turn() {
  Expire();
  const bool decoded = DecodeTurn();
  const bool prefilled = PrefillTurn();
  if (options_.now() >= gauges_due_ || (!decoded && !prefilled)) UpdateGauges();
  return decoded || prefilled;
}

// The device's copy of the sampling options is written only when a row is about to read it and they
// have changed: a steady generation uploads nothing but its rows. The bias list may stay when only
// `top_logprobs` differs, because its count is part of what is written.
absl::Status StepLoop::SyncSampling(Session& session, int32_t top_logprobs) {
  if (!session.sampling_stale && session.top_logprobs == top_logprobs) return absl::OkStatus();
  absl::Status status = kv_.SetSampling(
      session.slot, ToSlotSampling(session.sampling, top_logprobs),
      session.sampling_stale ? ToLogitBias(session.sampling) : std::vector<LogitBias>());
  if (!status.ok()) return status;
  session.sampling_stale = false;
  session.top_logprobs = top_logprobs;
  return absl::OkStatus();
}

// Without a forced token the row does not name its token: the device appends what the slot sampled
// last, which is what session.info.next_token mirrors. A forced token counts as prompt for the
// penalties, because the model did not choose it.
StepRow StepLoop::DecodeRow(const Request& request, const Session& session) const {
  StepRow row = {.slot = session.slot,
                 .token = request.forced_token.value_or(kTokenFromSlot),
                 .seqlens_k = static_cast<int32_t>(session.info.length_tokens),
                 .flags = kRowSample | (request.forced_token ? kRowPrompt : 0),
                 .position = 0,
                 .step = session.info.steps};
  if (session.fault.token) row.token = *session.fault.token;
  if (session.fault.seqlens_k) row.seqlens_k = *session.fault.seqlens_k;
  if (session.fault.position) {
    row.position = *session.fault.position;
    row.flags |= kRowExplicitPosition;
  }
  return row;
}

// One replay for everybody who waits, up to max_rows in order of arrival. Requests leave the queue
// here and come back only through OnGenerated, so none is stepped twice in a turn.
bool StepLoop::DecodeTurn() {
  std::vector<Request*> batch;
  while (!decode_queue_.empty() && batch.size() < static_cast<size_t>(runner_.max_rows())) {
    batch.push_back(decode_queue_.front());
    decode_queue_.pop_front();
  }
  if (batch.empty()) return false;

  const absl::Time launched = options_.now();
  std::vector<StepRow> rows;
  for (Request* request : batch) {
    Session& session = *Find(request->session);
    if (absl::Status status = SyncSampling(session, request->top_logprobs); !status.ok()) {
      DeviceFault(status);
      return true;
    }
    rows.push_back(DecodeRow(*request, session));
    session.fault = {};  // used up, whatever comes of the step
  }
  absl::StatusOr<const RowResult*> results = runner_.Decode(rows);
  if (absl::IsFailedPrecondition(results.status())) {
    metrics_.GraphMiss();
  } else {
    metrics_.GraphHit();
  }
  // Every bucket was captured at start, so a miss is a bug of ours. It is treated as a fault too:
  // what the host believes about the device no longer holds.
  if (!results.ok()) {
    DeviceFault(results.status());
    return true;
  }
  const absl::Duration device = options_.now() - launched;
  metrics_.StepDone(static_cast<int64_t>(batch.size()), absl::ToDoubleSeconds(device));
  for (size_t i = 0; i < batch.size(); ++i) {
    // Reading logits may have failed for an earlier row: all requests have ended with the fault.
    if (!fault_.ok()) return true;
    Request& request = *batch[i];
    OnStep(request, *Find(request.session), (*results)[i], static_cast<int32_t>(i), device);
  }
  return true;
}

// One chunk of the prompt at the front. Prompts are finished one after the other: taking turns
// would delay the first token of all of them and speed up none. The session's length does not move
// until the last chunk's result is in, so until then each row's index is counted from it.
bool StepLoop::PrefillTurn() {
  if (prefill_queue_.empty()) return false;
  Request& request = *prefill_queue_.front();
  Session& session = *Find(request.session);
  const int64_t total = static_cast<int64_t>(request.prompt.size());
  const int64_t count = std::min<int64_t>(runner_.prefill_chunk(), total - request.prompt_done);
  const bool last = request.prompt_done + count == total;

  std::vector<StepRow> rows;
  for (int64_t i = request.prompt_done; i < request.prompt_done + count; ++i) {
    const bool prompt = i > 0 || !request.append_next_token;  // see Start
    const bool sample = i + 1 == total;                       // only after the whole prompt
    rows.push_back({.slot = session.slot,
                    .token = request.prompt[i],
                    .seqlens_k = static_cast<int32_t>(session.info.length_tokens + i),
                    .flags = (prompt ? kRowPrompt : 0) | (sample ? kRowSample : 0),
                    .position = 0,
                    .step = session.info.steps});
  }
  const absl::Time launched = options_.now();
  absl::Status status = SyncSampling(session, request.top_logprobs);
  absl::StatusOr<const RowResult*> result = nullptr;
  if (status.ok()) {
    result = runner_.Prefill(rows, last);
    status = result.status();
  }
  if (!status.ok()) {
    DeviceFault(status);
    return true;
  }
  const absl::Duration device = options_.now() - launched;
  request.device += device;
  request.prompt_done += count;
  last_good_step_ = options_.now();  // a long prompt is progress too: health goes by this time
  metrics_.PrefillDone(count, absl::ToDoubleSeconds(device));
  // Until then it stays at the front, and the next turn goes on with it.
  if (last) {
    prefill_queue_.pop_front();
    OnPrefilled(request, session, **result);
  }
  return true;
}

// The first fault wins: after it nothing the device holds can be trusted, so all requests end with
// it.
void StepLoop::DeviceFault(const absl::Status& status) {
  if (fault_.ok()) fault_ = absl::InternalError(absl::StrCat("device fault: ", status.message()));
  std::vector<Request*> all;
  for (const auto& [id, request] : requests_) all.push_back(request.get());
  for (Request* request : all) Fail(*request, fault_);
}

void StepLoop::UpdateGauges() {
  gauges_due_ = options_.now() + kGaugeInterval;
  int64_t idle = 0, busy = 0, poisoned = 0;
  for (const auto& [id, session] : sessions_) {
    ++(session->poisoned() ? poisoned : session->running != nullptr ? busy : idle);
  }
  metrics_.SetSessions("idle", idle);
  metrics_.SetSessions("busy", busy);
  metrics_.SetSessions("poisoned", poisoned);
  metrics_.SetKvTokens(kv_.free_tokens(), kv_.total_tokens());
  metrics_.SetQueueDepth(static_cast<int64_t>(decode_queue_.size() + prefill_queue_.size()));
}

}  // namespace latchd
