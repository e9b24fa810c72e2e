// The result half of StepLoop: what a step's outcome does to its session, and how requests end.

#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/sched/step_loop.h"

namespace latchd {

std::optional<Violation> StepLoop::Apply(Session& session, const RowResult& row,
                                         int64_t appended_tokens) {
  session.info.last_used = options_.now();
  if (row.latch.mask != 0) {
    session.info.latch = row.latch;
    for (const InvariantInfo& invariant : kInvariants) {
      if (row.latch.mask & invariant.bit) metrics_.ViolationLatched(std::string(invariant.name));
    }
    return Violation{row.latch, DescribeLatch(row.latch)};
  }
  session.info.length_tokens += appended_tokens;
  session.info.steps += 1;
  session.info.next_token = row.token;
  last_good_step_ = options_.now();
  return std::nullopt;
}

Sampled StepLoop::ToSampled(const RowResult& row) const {
  Sampled sampled = {.token = row.token, .logprob = row.logprob, .top = {}, .logits = {}};
  for (int32_t i = 0; i < row.top_count; ++i)
    sampled.top.push_back({row.top_token[i], row.top_logprob[i]});
  return sampled;
}

void StepLoop::OnStep(Request& request, Session& session, const RowResult& row, int32_t row_index,
                      absl::Duration device) {
  const int32_t appended =
      request.forced_token.value_or(session.info.next_token.value_or(kInactive));
  std::optional<Violation> violation = Apply(session, row, 1);
  if (violation) return Violated(request, *std::move(violation));
  Sampled sampled = ToSampled(row);
  if (request.generation != nullptr)
    return OnGenerated(request, session, std::move(sampled), device);

  if (request.want_logits) {
    if (absl::Status status = runner_.ReadDecodeLogits(row_index, sampled.logits); !status.ok()) {
      return DeviceFault(status);
    }
  }
  StepResult result = {.length_tokens = session.info.length_tokens,
                       .appended_token = appended,
                       .violation = std::nullopt,
                       .next = std::move(sampled),
                       .timings = {request.queued, device}};
  auto done = std::move(request.step_done);
  Retire(request);
  done(std::move(result));
}

void StepLoop::OnPrefilled(Request& request, Session& session, const RowResult& row) {
  std::optional<Violation> violation =
      Apply(session, row, static_cast<int64_t>(request.prompt.size()));
  if (violation) return Violated(request, *std::move(violation));
  Sampled sampled = ToSampled(row);
  metrics_.TimeToFirstToken(absl::ToDoubleSeconds(options_.now() - request.submitted));
  if (request.generation != nullptr) {
    request.generation->prefill_time = request.device;
    session.info.state = SessionState::kGenerating;
    if (absl::Status status = request.SetState(Request::State::kDecoding); !status.ok())
      return Fail(request, status);
    return OnGenerated(request, session, std::move(sampled), request.device);
  }
  if (request.want_logits) {
    if (absl::Status status = runner_.ReadPrefillLogits(sampled.logits); !status.ok())
      return DeviceFault(status);
  }
  PrefillResult result = {.length_tokens = session.info.length_tokens,
                          .violation = std::nullopt,
                          .next = std::move(sampled),
                          .timings = {request.queued, request.device}};
  auto done = std::move(request.prefill_done);
  Retire(request);
  done(std::move(result));
}

void StepLoop::OnGenerated(Request& request, Session& session, Sampled sampled,
                           absl::Duration device) {
  Generation& generation = *request.generation;
  const absl::Time now = options_.now();
  if (generation.generated > 0) {
    metrics_.InterTokenLatency(absl::ToDoubleSeconds(now - generation.last_token_at));
    generation.decode_time += now - generation.last_token_at;
  }
  generation.last_token_at = now;
  ++generation.generated;
  metrics_.TokensGenerated(1);

  const bool stop_token = generation.stop_tokens.contains(sampled.token);
  GeneratedToken event = {.sampled = std::move(sampled),
                          .text = "",
                          .length_tokens = session.info.length_tokens,
                          .timings = {request.queued, device}};
  if (generation.detokenizer != nullptr && !stop_token) {
    event.text = generation.stop_matcher.Push(generation.detokenizer->Push(event.sampled.token));
  }
  generation.on_token(event);

  if (stop_token) return Finish(request, FinishReason::kStopToken);
  if (generation.stop_matcher.matched()) {
    return Finish(request, FinishReason::kStopString, *generation.stop_matcher.matched());
  }
  if (generation.generated >= generation.request.max_tokens)
    return Finish(request, FinishReason::kLength);
  if (session.room() == 0) return Finish(request, FinishReason::kCapacity);
  decode_queue_.push_back(&request);
}

void StepLoop::Violated(Request& request, Violation violation) {
  const Session* session = Find(request.session);
  const int64_t length = session == nullptr ? 0 : session->info.length_tokens;
  if (request.generation != nullptr) {
    auto generation = std::move(request.generation);
    const int64_t prompt = request.prompt_done;
    Retire(request);
    generation->done({.reason = FinishReason::kViolation,
                      .violation = std::move(violation),
                      .prompt_tokens = prompt,
                      .generated_tokens = generation->generated,
                      .prefill_time = generation->prefill_time,
                      .decode_time = generation->decode_time});
  } else if (request.step_done) {
    auto done = std::move(request.step_done);
    const Timings timings = {request.queued, request.device};
    Retire(request);
    done(
        StepResult{.length_tokens = length, .violation = std::move(violation), .timings = timings});
  } else {
    auto done = std::move(request.prefill_done);
    const Timings timings = {request.queued, request.device};
    Retire(request);
    done(PrefillResult{.length_tokens = length,
                       .violation = std::move(violation),
                       .next = {},
                       .timings = timings});
  }
}

// Ends a generation that did not fail: what text was held back belongs to the client, unless a stop
// string matched.
void StepLoop::Finish(Request& request, FinishReason reason, const std::string& matched_stop) {
  auto generation = std::move(request.generation);
  GenerateSummary summary = {.reason = reason,
                             .prompt_tokens = request.prompt_done,
                             .generated_tokens = generation->generated,
                             .prefill_time = generation->prefill_time,
                             .decode_time = generation->decode_time,
                             .matched_stop = matched_stop};
  if (generation->detokenizer != nullptr && matched_stop.empty()) {
    summary.text = generation->stop_matcher.Push(generation->detokenizer->Finish());
    summary.text += generation->stop_matcher.Finish();
  }
  Retire(request);
  generation->done(summary);
}

void StepLoop::Fail(Request& request, const absl::Status& status) {
  if (request.generation != nullptr) {
    auto generation = std::move(request.generation);
    Retire(request);
    generation->done({.reason = FinishReason::kError,
                      .error = status,
                      .generated_tokens = generation->generated});
  } else if (request.step_done) {
    auto done = std::move(request.step_done);
    Retire(request);
    done(status);
  } else {
    auto done = std::move(request.prefill_done);
    Retire(request);
    done(status);
  }
}

// Takes the request out of every list and frees it; its callback has been moved out before.
void StepLoop::Retire(Request& request) {
  std::erase(decode_queue_, &request);
  std::erase(prefill_queue_, &request);
  Session* session = Find(request.session);
  if (session != nullptr && session->running == &request) {
    session->running = nullptr;
    session->info.last_used = options_.now();
  }
  (void)request.SetState(Request::State::kDone);
  requests_.erase(request.id);
}

}  // namespace latchd
