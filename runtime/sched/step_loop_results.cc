// The result half of StepLoop: what a step's outcome does to its session, and how requests end.
//
// Every end has one shape: move the callback out of the request, Retire the request (which frees
// it), call. In this order a callback sees its session idle and may submit the next request at
// once, and no path can answer twice.

#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/sched/step_loop.h"

namespace latchd {
namespace {

// What a generation has to tell at its end, whatever ends it.
GenerateSummary Summarise(const Request& request, FinishReason reason) {
  const Generation& generation = *request.generation;
  return {.reason = reason,
          .prompt_tokens = request.prompt_done,
          .generated_tokens = generation.generated,
          .prefill_time = generation.prefill_time,
          .decode_time = generation.decode_time};
}

}  // namespace

// The only place where a session's length moves. The device has judged the row: with a latch it
// left the slot's next token alone, and what it may have written into KV lies beyond `length`,
// where the next step writes again. So a violated step needs no undo, only no progress here.
std::optional<Violation> StepLoop::Apply(Session& session, const RowResult& row,
                                         int64_t appended_tokens) {
  session.info.last_used = options_.now();
  if (row.latch.mask != 0) {
    // The session is poisoned from here until ClearLatch, Truncate or Reset: the device skips its
    // rows as long as the slot's latch is set, and Submit answers from this copy.
    session.info.latch = row.latch;
    for (const InvariantInfo& invariant : kInvariants) {
      if (row.latch.mask & invariant.bit) metrics_.ViolationLatched(std::string(invariant.name));
    }
    return Violation{row.latch, DescribeLatch(row.latch)};
  }
  session.info.length_tokens += appended_tokens;
  session.info.steps += 1;  // a whole prompt is one step, however many chunks it took
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
  // Read before Apply replaces the session's next token by the one sampled now.
  const int32_t appended =
      request.forced_token.value_or(session.info.next_token.value_or(kInactive));
  std::optional<Violation> violation = Apply(session, row, 1);
  if (violation) return Violated(request, *std::move(violation));
  Sampled sampled = ToSampled(row);
  if (request.generation != nullptr)
    return OnGenerated(request, session, std::move(sampled), device);

  // The logits stay on the device until the next step overwrites them, so they are read now.
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

// The last chunk of a prompt is done. Earlier chunks report nothing: a violation in one of them
// stays in the slot's latch, makes the device skip what follows, and arrives in this row.
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

// One more token of a generation, from its prompt or from a decode step. It either ends the
// generation or sends the request to the back of the decode queue: with more requests than rows,
// each gets its turn.
void StepLoop::OnGenerated(Request& request, Session& session, Sampled sampled,
                           absl::Duration device) {
  Generation& generation = *request.generation;
  const absl::Time now = options_.now();
  if (generation.generated > 0) {  // the first token's wait is the TTFT, not an ITL
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
  // A stop token is reported, because it was sampled and is the session's next token, but it has no
  // text: clients print what they get.
  if (generation.detokenizer != nullptr && !stop_token) {
    event.text = generation.stop_matcher.Push(generation.detokenizer->Push(event.sampled.token));
  }
  generation.on_token(event);

  // The model's own ends come before the limits, so that a stop in the last token allowed is
  // reported as a stop.
  if (stop_token) return Finish(request, FinishReason::kStopToken);
  if (generation.stop_matcher.matched()) {
    return Finish(request, FinishReason::kStopString, *generation.stop_matcher.matched());
  }
  if (generation.generated >= generation.request.max_tokens)
    return Finish(request, FinishReason::kLength);
  if (session.room() == 0) return Finish(request, FinishReason::kCapacity);
  decode_queue_.push_back(&request);
}

// A violation is a result, not an error: the call was well formed, the answer says what the device
// found, and the unchanged length tells the client where its session stands.
void StepLoop::Violated(Request& request, Violation violation) {
  if (request.generation != nullptr) {
    return Finish(request, FinishReason::kViolation, "", std::move(violation));
  }
  const Session* session = Find(request.session);
  const int64_t length = session == nullptr ? 0 : session->info.length_tokens;
  const Timings timings = {request.queued, request.device};
  if (request.step_done) {
    auto done = std::move(request.step_done);
    Retire(request);
    done(
        StepResult{.length_tokens = length, .violation = std::move(violation), .timings = timings});
  } else {
    auto done = std::move(request.prefill_done);
    Retire(request);
    done(PrefillResult{.length_tokens = length,
                       .violation = std::move(violation),
                       .next = {},
                       .timings = timings});
  }
}

// Ends a generation whose tokens so far stand. Text that was held back belongs to the client,
// because its tokens are in the session, unless a stop string matched: then what is left is the
// stop string itself.
void StepLoop::Finish(Request& request, FinishReason reason, const std::string& matched_stop,
                      std::optional<Violation> violation) {
  GenerateSummary summary = Summarise(request, reason);
  auto generation = std::move(request.generation);
  summary.violation = std::move(violation);
  summary.matched_stop = matched_stop;
  if (generation->detokenizer != nullptr && matched_stop.empty()) {
    // The detokenizer's rest may still complete a stop string, so it goes through the matcher.
    summary.text = generation->stop_matcher.Push(generation->detokenizer->Finish());
    summary.text += generation->stop_matcher.Finish();
  }
  Retire(request);
  generation->done(summary);
}

// Ends a request with an error: refused, cancelled, late, or caught by a device fault. The session
// is left as its last applied step left it.
void StepLoop::Fail(Request& request, const absl::Status& status) {
  if (request.generation != nullptr) {
    GenerateSummary summary = Summarise(request, FinishReason::kError);
    summary.error = status;
    auto generation = std::move(request.generation);
    Retire(request);
    generation->done(summary);
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
  // A refused request never ran on the session: another one may be running there, and keeps it.
  Session* session = Find(request.session);
  if (session != nullptr && session->running == &request) {
    session->running = nullptr;
    session->info.last_used = options_.now();  // the TTL counts from the end of work
  }
  (void)request.SetState(Request::State::kDone);  // allowed from every state but kDone itself
  requests_.erase(request.id);
}

}  // namespace latchd
