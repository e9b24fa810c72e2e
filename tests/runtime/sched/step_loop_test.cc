// What the loop computes: batches, chunks, appends, capacity, sampling.

#include <algorithm>
#include <cmath>
#include <set>

#include "tests/runtime/sched/puppet.h"

namespace latchd {
namespace {

using testing::Answer;
using testing::Fails;
using testing::GenerateAnswer;
using testing::IsOk;
using testing::Puppet;
using testing::PuppetOptions;
using enum absl::StatusCode;

void ExpectSameEvents(const GenerateAnswer& a, const GenerateAnswer& b) {
  ASSERT_EQ(a.events.size(), b.events.size());
  for (size_t i = 0; i < a.events.size(); ++i) {
    const Sampled &x = a.events[i].sampled, &y = b.events[i].sampled;
    EXPECT_EQ(x.token, y.token) << "token " << i;
    EXPECT_EQ(x.logprob, y.logprob) << "token " << i << ": not the same bits";
    ASSERT_EQ(x.top.size(), y.top.size());
    for (size_t t = 0; t < x.top.size(); ++t) {
      EXPECT_EQ(x.top[t].token, y.top[t].token);
      EXPECT_EQ(x.top[t].logprob, y.top[t].logprob);
    }
  }
}

void ExpectNear(const std::vector<float>& a, const std::vector<float>& b, float tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], tolerance) << "element " << i;
}

TEST(StepLoop, GreedyTokensAreTheArgmaxOfTheLogits) {
  reference::Random random;
  SCOPED_TRACE(random.note());
  Puppet puppet({.seed = random.Word()});
  const SessionId session = puppet.Open();
  auto prefill = puppet.Prefill({.session = session,
                                 .tokens = puppet.RandomPrompt(random, 13),
                                 .top_logprobs = 4,
                                 .want_logits = true});
  puppet.RunUntilIdle();
  ASSERT_THAT(prefill->result, IsOk());
  EXPECT_EQ((*prefill)->length_tokens, 13);
  Sampled next = (*prefill)->next;
  for (int step = 0; step < 5; ++step) {
    ASSERT_EQ(next.logits.size(), static_cast<size_t>(puppet.config.vocab));
    const auto best = std::max_element(next.logits.begin(), next.logits.end());
    EXPECT_EQ(next.token, best - next.logits.begin());
    double sum = 0;
    for (const float logit : next.logits) sum += std::exp(static_cast<double>(logit) - *best);
    EXPECT_NEAR(next.logprob, -std::log(sum), 1e-4);
    ASSERT_EQ(next.top.size(), 4u);
    EXPECT_EQ(next.top[0].token, next.token);
    EXPECT_EQ(puppet.Info(session).next_token, next.token);

    auto answer = puppet.Step({.session = session, .top_logprobs = 4, .want_logits = true});
    puppet.RunUntilIdle();
    ASSERT_THAT(answer->result, IsOk());
    EXPECT_EQ((*answer)->appended_token, next.token);
    EXPECT_EQ((*answer)->length_tokens, 14 + step);
    next = (*answer)->next;
  }
}

// Six sessions, four rows: buckets fill, empty and change under each session, some sample and some
// are greedy. Each must get what it gets alone, bit for bit, and leave the same KV.
TEST(StepLoop, ABatchGivesEachSessionWhatItGetsAlone) {
  reference::Random random;
  SCOPED_TRACE(random.note());
  Puppet puppet({.seed = random.Word()});
  std::vector<GenerateRequest> requests(6);
  for (GenerateRequest& request : requests) {
    request.prompt = puppet.RandomPrompt(random, random.Int(1, 30));
    request.max_tokens = random.Int(24, 32);
    request.top_logprobs = random.Int(0, 3);
    request.sampling = SamplingOptions{.temperature = random.Chance(0.5) ? 0.0f : 0.9f,
                                       .top_k = random.Int(0, 20),
                                       .repetition_penalty = random.Chance(0.5) ? 1.0f : 1.3f,
                                       .seed = random.Word()};
  }
  std::vector<std::shared_ptr<GenerateAnswer>> together;
  std::vector<SessionId> sessions;
  for (GenerateRequest& request : requests) {
    request.session = puppet.Open({.capacity_tokens = 64});
    sessions.push_back(request.session);
    together.push_back(puppet.Generate(request));
  }
  puppet.RunUntilIdle();
  const auto entries = puppet.runner->graphs().entries();
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_GT(entries[2]->replays, 0) << "no step had more than two rows: nothing was batched";

  std::set<std::vector<int32_t>> distinct;
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE("session " + std::to_string(i));
    EXPECT_EQ(together[i]->calls, 1);
    EXPECT_EQ(together[i]->summary.reason, FinishReason::kLength);
    EXPECT_EQ(static_cast<int64_t>(together[i]->events.size()), requests[i].max_tokens);
    distinct.insert(together[i]->tokens());
    requests[i].session = puppet.Open({.capacity_tokens = 64});
    auto alone = puppet.RunGenerate(requests[i]);
    ExpectSameEvents(*together[i], *alone);
    EXPECT_EQ(puppet.Digest(sessions[i]), puppet.Digest(requests[i].session));
    ASSERT_THAT(puppet.loop->Close(requests[i].session), IsOk());
  }
  EXPECT_EQ(distinct.size(), 6u) << "sessions that all say the same prove nothing";
}

TEST(StepLoop, OneStepAndGenerateAgree) {
  reference::Random random;
  SCOPED_TRACE(random.note());
  Puppet puppet({.seed = random.Word()});
  const std::vector<int32_t> prompt = puppet.RandomPrompt(random, 9);
  const SessionId a = puppet.Open(), b = puppet.Open();
  const std::vector<int32_t> generated =
      puppet.RunGenerate({.session = a, .prompt = prompt, .max_tokens = 6})->tokens();
  auto prefill = puppet.Prefill({.session = b, .tokens = prompt});
  puppet.RunUntilIdle();
  std::vector<int32_t> stepped = {(*prefill)->next.token};
  while (stepped.size() < 6) {
    auto step = puppet.Step({.session = b});
    puppet.RunUntilIdle();
    stepped.push_back((*step)->next.token);
  }
  EXPECT_EQ(stepped, generated);
  EXPECT_EQ(puppet.Length(a), 9 + 5) << "the last token is sampled, not appended";
  EXPECT_EQ(puppet.Digest(a), puppet.Digest(b));
}

// The chunk size may change rounding, never what the prompt means.
TEST(StepLoop, AChunkedPrefillIsTheUnchunkedOne) {
  reference::Random random;
  SCOPED_TRACE(random.note());
  Puppet whole({.seed = 77, .prefill_chunk = 64});
  Puppet chunked({.seed = 77, .prefill_chunk = 5});
  for (int round = 0; round < 4; ++round) {
    const std::vector<int32_t> prompt = whole.RandomPrompt(random, random.Int(6, 60));
    const auto logits = [&](Puppet& puppet) {
      const SessionId session = puppet.Open();
      auto answer = puppet.Prefill({.session = session, .tokens = prompt, .want_logits = true});
      puppet.RunUntilIdle();
      EXPECT_EQ((*answer)->length_tokens, static_cast<int64_t>(prompt.size()));
      EXPECT_THAT(puppet.loop->Close(session), IsOk());
      return (*answer)->next.logits;
    };
    ExpectNear(logits(whole), logits(chunked), 1e-4f);
  }
  // Fixed data: no two logits are so close that rounding could choose between them.
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 41; ++i) prompt.push_back((i * 37 + 11) % 96);
  const GenerateRequest request = {.session = 0, .prompt = prompt, .max_tokens = 12};
  GenerateRequest a = request, b = request;
  a.session = whole.Open();
  b.session = chunked.Open();
  EXPECT_EQ(whole.RunGenerate(a)->tokens(), chunked.RunGenerate(b)->tokens());
}

TEST(StepLoop, ALongPromptDoesNotStopOthersFromDecoding) {
  reference::Random random;
  Puppet puppet({.prefill_chunk = 4});
  const SessionId talking = puppet.Open(), reading = puppet.Open();
  auto generation = puppet.Generate({.session = talking, .prompt = {1}, .max_tokens = 50});
  puppet.Turns(1);
  ASSERT_EQ(generation->events.size(), 1u);
  auto prefill = puppet.Prefill({.session = reading, .tokens = puppet.RandomPrompt(random, 40)});
  for (size_t turn = 1; turn <= 10; ++turn) {
    EXPECT_FALSE(prefill->done());
    puppet.Turns(1);
    EXPECT_EQ(generation->events.size(), 1 + turn) << "one token a turn";
  }
  EXPECT_THAT(prefill->result, IsOk());
}

TEST(StepLoop, AppendNextTokenPutsTheSessionsOwnChoiceBeforeThePrompt) {
  reference::Random random;
  SCOPED_TRACE(random.note());
  Puppet puppet({.seed = random.Word()});
  // Penalties, so that it shows whether the token counts as generated or as prompt.
  const SamplingOptions sampling = {.repetition_penalty = 1.4f, .presence_penalty = 1.5f};
  const std::vector<int32_t> prompt = puppet.RandomPrompt(random, 11);
  const int32_t after = random.Int(0, 95);
  const SessionId a = puppet.Open({.sampling = sampling}), b = puppet.Open({.sampling = sampling});
  for (const SessionId session : {a, b}) puppet.Prefill({.session = session, .tokens = prompt});
  puppet.RunUntilIdle();
  const std::optional<int32_t> chosen = puppet.Info(a).next_token;
  ASSERT_TRUE(chosen.has_value());

  auto appended = puppet.Prefill(
      {.session = a, .tokens = {after}, .append_next_token = true, .want_logits = true});
  puppet.RunUntilIdle();
  auto own = puppet.Step({.session = b});
  puppet.RunUntilIdle();
  EXPECT_EQ((*own)->appended_token, chosen);
  auto forced = puppet.Step({.session = b, .forced_token = after, .want_logits = true});
  puppet.RunUntilIdle();
  EXPECT_EQ((*appended)->length_tokens, 13);
  EXPECT_EQ((*forced)->appended_token, after);
  ExpectNear((*appended)->next.logits, (*forced)->next.logits, 1e-4f);

  auto alone = puppet.Prefill({.session = a, .append_next_token = true});
  puppet.RunUntilIdle();
  ASSERT_THAT(alone->result, IsOk()) << "the next token alone is a prompt too";
  EXPECT_EQ((*alone)->length_tokens, 14);
  auto dropped = puppet.Prefill({.session = a, .tokens = {after}});
  puppet.RunUntilIdle();
  EXPECT_EQ((*dropped)->length_tokens, 15) << "without the flag the next token is dropped";

  const SessionId fresh = puppet.Open();
  auto none = puppet.Prefill({.session = fresh, .tokens = {1}, .append_next_token = true});
  EXPECT_THAT(none->result, Fails(kFailedPrecondition, "append_next_token: the session has no"));
}

TEST(StepLoop, AFullSessionIsRefusedByNameAndKeepsItsLength) {
  reference::Random random;
  Puppet puppet;
  const SessionId session = puppet.Open({.capacity_tokens = 12});
  auto too_long = puppet.Prefill({.session = session, .tokens = puppet.RandomPrompt(random, 13)});
  EXPECT_THAT(too_long->result,
              Fails(kInvalidArgument, "tokens: expected at most 12 (capacity 12 less length 0)"));
  EXPECT_EQ(puppet.Length(session), 0);

  auto generation = puppet.RunGenerate(
      {.session = session, .prompt = puppet.RandomPrompt(random, 8), .max_tokens = 100});
  EXPECT_EQ(generation->summary.reason, FinishReason::kCapacity);
  EXPECT_EQ(generation->events.size(), 5u) << "one after the prompt, four that were appended";
  EXPECT_EQ(generation->summary.generated_tokens, 5);
  EXPECT_EQ(generation->summary.prompt_tokens, 8);
  EXPECT_EQ(puppet.Length(session), 12);

  const int64_t replays = puppet.replays();
  auto step = puppet.Step({.session = session});
  EXPECT_THAT(step->result, Fails(kFailedPrecondition, "length 12 equals its capacity"));
  auto again = puppet.RunGenerate({.session = session, .max_tokens = 3});
  EXPECT_EQ(again->summary.reason, FinishReason::kCapacity);
  EXPECT_TRUE(again->events.empty());
  EXPECT_EQ(puppet.replays(), replays) << "nothing was launched";
  EXPECT_EQ(puppet.Info(session).state, SessionState::kIdle) << "and nothing is poisoned";
}

TEST(StepLoop, WhatAClientGetsWrongIsNamedAndChangesNothing) {
  Puppet puppet;
  const SessionId session = puppet.Open();
  EXPECT_THAT(puppet.Prefill({.session = 5, .tokens = {1}})->result,
              Fails(kNotFound, "session_id: 5 was never opened here"));
  EXPECT_THAT(puppet.Prefill({.session = session})->result,
              Fails(kInvalidArgument, "tokens: expected at least one token"));
  EXPECT_THAT(puppet.Prefill({.session = session, .tokens = {1, 2, 96}})->result,
              Fails(kInvalidArgument, "tokens[2]: expected a token id in 0..95, got 96"));
  EXPECT_THAT(puppet.Step({.session = session, .forced_token = -1})->result,
              Fails(kInvalidArgument, "forced_token_id: expected a token id in 0..95, got -1"));
  EXPECT_THAT(puppet.Step({.session = session})->result,
              Fails(kFailedPrecondition, "no next token"));
  auto generation = puppet.Generate(
      {.session = session, .prompt = {1}, .sampling = SamplingOptions{.top_p = 2.0f}});
  EXPECT_EQ(generation->summary.reason, FinishReason::kError);
  EXPECT_THAT(generation->summary.error, Fails(kInvalidArgument, "sampling.top_p"));
  EXPECT_THAT(puppet.loop->Open({.capacity_tokens = 129}),
              Fails(kInvalidArgument, "capacity_tokens: expected 1..128"));
  EXPECT_THAT(puppet.loop->Open({.capacity_tokens = -1}), Fails(kInvalidArgument, "got -1"));
  EXPECT_THAT(puppet.loop->Open({.sampling = {.temperature = -1.0f}}),
              Fails(kInvalidArgument, "sampling.temperature"));
  EXPECT_EQ(puppet.Info(session).state, SessionState::kIdle);
  EXPECT_EQ(puppet.Length(session), 0);
  EXPECT_FALSE(puppet.loop->Turn()) << "nothing was queued";
}

TEST(StepLoop, SampledTokensDependOnTheSeedAloneAndNotOnTheCompany) {
  reference::Random random;
  SCOPED_TRACE(random.note());
  Puppet puppet({.seed = random.Word()});
  const std::vector<int32_t> prompt = puppet.RandomPrompt(random, 6);
  const auto request = [&](uint64_t seed) {
    return GenerateRequest{.session = puppet.Open({.capacity_tokens = 64}),
                           .prompt = prompt,
                           .max_tokens = 20,
                           .sampling = SamplingOptions{.temperature = 1.0f, .seed = seed}};
  };
  const GenerateRequest first = request(11);
  const std::vector<int32_t> alone = puppet.RunGenerate(first)->tokens();
  auto in_company = puppet.Generate(request(11));
  auto other = puppet.Generate(request(12));
  puppet.Turns(3);
  auto late = puppet.Generate(request(13));
  puppet.RunUntilIdle();
  EXPECT_EQ(in_company->tokens(), alone);
  EXPECT_NE(other->tokens(), alone);
  EXPECT_NE(late->tokens(), alone);
  EXPECT_NE(late->tokens(), other->tokens());

  ASSERT_THAT(puppet.loop->Truncate(first.session, 0), IsOk());
  EXPECT_EQ(puppet.RunGenerate(first)->tokens(), alone) << "a reset session starts over";
}

TEST(StepLoop, MetricsCountWhatHappened) {
  Puppet puppet;
  const SessionId session = puppet.Open();
  puppet.RunGenerate({.session = session, .prompt = {1, 2}, .max_tokens = 4});
  puppet.Step({.session = session, .deadline = puppet.now});
  puppet.Step({.session = session, .deadline = puppet.now + absl::Seconds(1)});
  puppet.now += absl::Seconds(1);
  puppet.Turns(1);
  puppet.loop->Cancel(puppet.Step({.session = session})->id);
  const std::string text = puppet.metrics.Render();
  for (const char* line : {"latchd_graph_hits_total 3\n", "latchd_generated_tokens_total 4\n",
                           "latchd_requests_cancelled_total 3\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "in\n" << text;
  }
}

TEST(StepLoop, LogitBiasHoldsAcrossStepsAndIsReplacedByTheNextSampling) {
  Puppet puppet;
  const SessionId session = puppet.Open({.sampling = {.logit_bias = {{42, 1000.0f}}}});
  EXPECT_EQ(puppet.RunGenerate({.session = session, .prompt = {1}, .max_tokens = 4})->tokens(),
            (std::vector<int32_t>(4, 42)));
  // Asking for alternatives rewrites the slot's sampling; the bias must survive that.
  EXPECT_EQ(puppet.RunGenerate({.session = session, .max_tokens = 3, .top_logprobs = 2})->tokens(),
            (std::vector<int32_t>(3, 42)));
  const SamplingOptions other = {.logit_bias = {{7, 1000.0f}}};
  EXPECT_EQ(puppet.RunGenerate({.session = session, .max_tokens = 3, .sampling = other})->tokens(),
            (std::vector<int32_t>(3, 7)));
  EXPECT_EQ(puppet.Info(session).sampling.logit_bias, other.logit_bias);
}

}  // namespace
}  // namespace latchd
