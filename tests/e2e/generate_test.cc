#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "absl/time/clock.h"
#include "tests/e2e/daemon.h"

namespace latchd::e2e {
namespace {

using client::CallOptions;

struct Output {
  std::vector<int32_t> ids;
  std::string text;
  v1::GenerateResponse::Finish finish;
};

class GenerateE2e : public DaemonTest {
 protected:
  // Greedy, never ending early, until the test says otherwise.
  v1::GenerateRequest Request(const std::vector<int32_t>& prompt, int32_t max_tokens = 24) {
    v1::GenerateRequest request;
    request.mutable_tokens()->mutable_ids()->Add(prompt.begin(), prompt.end());
    request.set_max_tokens(max_tokens);
    request.set_ignore_eos(true);
    return request;
  }

  // Samples among the ASCII bytes only, so that the text has one character a token.
  v1::GenerateRequest AsciiRequest(const std::vector<int32_t>& prompt, uint64_t sampling_seed) {
    v1::GenerateRequest request = Request(prompt);
    request.mutable_sampling()->set_temperature(1.0f);
    request.mutable_sampling()->set_seed(sampling_seed);
    for (int32_t id = 128; id < kVocab; ++id) {
      (*request.mutable_sampling()->mutable_logit_bias())[id] = -1000.0f;
    }
    return request;
  }

  Output Generate(const v1::GenerateRequest& request) {
    Output output;
    const auto finish = client().Generate(request, [&](const v1::GenerateResponse::Token& token) {
      output.ids.push_back(token.next().token_id());
      output.text += token.text();
      return true;
    });
    EXPECT_TRUE(finish.ok()) << finish.status();
    if (finish.ok()) output.finish = *finish;
    output.text += output.finish.text();
    return output;
  }
};

TEST_F(GenerateE2e, GreedyIsDeterministicAndEqualsSteps) {
  const std::vector<int32_t> prompt = RandomPrompt(9);
  const Output first = Generate(Request(prompt));
  EXPECT_EQ(first.ids.size(), 24u);
  EXPECT_EQ(first.finish.reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(first.finish.usage().prompt_tokens(), 9);
  EXPECT_EQ(first.finish.usage().generated_tokens(), 24);
  EXPECT_EQ(Generate(Request(prompt)).ids, first.ids);
  const client::Session session = OpenWithPrompt(prompt);
  EXPECT_EQ(StepTokens(session.id(), 24), first.ids);
}

TEST_F(GenerateE2e, ForcingItsOwnTokensChangesNothing) {
  const std::vector<int32_t> prompt = RandomPrompt(5);
  const client::Session own = OpenWithPrompt(prompt), forced = OpenWithPrompt(prompt);
  const auto own_stream = client().OpenStepStream(own.id());
  const auto forced_stream = client().OpenStepStream(forced.id());
  client::StepOptions options;
  options.want_logits = true;
  for (int i = 0; i < 16; ++i) {
    const auto a = own_stream->Step(options);
    ASSERT_TRUE(a.ok()) << a.status();
    const auto b = forced_stream->StepForced(a->appended_token_id(), options);
    ASSERT_TRUE(b.ok()) << b.status();
    EXPECT_EQ(a->length_tokens(), b->length_tokens());
    EXPECT_EQ(a->next().token_id(), b->next().token_id());
    ASSERT_TRUE(std::equal(a->next().logits().begin(), a->next().logits().end(),
                           b->next().logits().begin(), b->next().logits().end()));
  }
}

TEST_F(GenerateE2e, PrefillThenStepEqualsALongerPrefill) {
  for (const size_t length : {1u, 7u, 40u}) {
    const std::vector<int32_t> prompt = RandomPrompt(length + 1);
    const client::Session stepped = OpenWithPrompt({prompt.begin(), prompt.end() - 1});
    client::StepOptions options;
    options.want_logits = true;
    const auto step = client().OpenStepStream(stepped.id())->StepForced(prompt.back(), options);
    ASSERT_TRUE(step.ok()) << step.status();
    const client::Session whole = Open();
    const auto prefill = Prefill(whole.id(), prompt, /*want_logits=*/true);
    EXPECT_EQ(step->length_tokens(), prefill.length_tokens());
    ASSERT_EQ(step->next().logits_size(), kVocab);
    ASSERT_EQ(prefill.next().logits_size(), kVocab);
    double largest = 0.0, error = 0.0;
    for (int i = 0; i < kVocab; ++i) {
      const double want = prefill.next().logits(i);
      largest = std::max(largest, std::abs(want));
      error = std::max(error, std::abs(want - step->next().logits(i)));
    }
    EXPECT_GT(largest, 0.0);
    EXPECT_LE(error, 1e-3 * largest) << "prompt of " << length;
  }
}

TEST_F(GenerateE2e, SameSeedSameTokensWhateverElseRuns) {
  const std::vector<int32_t> prompt = RandomPrompt(6);
  v1::GenerateRequest request = Request(prompt);
  request.mutable_sampling()->set_temperature(1.0f);
  request.mutable_sampling()->set_seed(seed());
  const Output alone = Generate(request);
  EXPECT_EQ(alone.finish.seed(), seed());
  std::thread other([&] { Generate(Request(RandomPrompt(12), 60)); });
  EXPECT_EQ(Generate(request).ids, alone.ids);
  other.join();
  request.mutable_sampling()->set_seed(seed() + 1);
  EXPECT_NE(Generate(request).ids, alone.ids);
  // A seed that the daemon chose is reported, and repeats the run.
  request.mutable_sampling()->clear_seed();
  const Output chosen = Generate(request);
  request.mutable_sampling()->set_seed(chosen.finish.seed());
  EXPECT_EQ(Generate(request).ids, chosen.ids);
}

TEST_F(GenerateE2e, TopLogprobsAreTheSoftmaxInOrder) {
  const client::Session session = OpenWithPrompt(RandomPrompt(4));
  client::StepOptions options;
  options.top_logprobs = 20;
  options.want_logits = true;
  const auto step = client().OpenStepStream(session.id())->Step(options);
  ASSERT_TRUE(step.ok()) << step.status();
  const v1::NextToken& next = step->next();
  ASSERT_EQ(next.top_size(), 20);
  double sum = 0.0;
  for (const float logit : next.logits()) sum += std::exp(static_cast<double>(logit));
  double mass = 0.0;
  for (int i = 0; i < next.top_size(); ++i) {
    const double want = next.logits(next.top(i).token_id()) - std::log(sum);
    EXPECT_NEAR(next.top(i).logprob(), want, 1e-3);
    EXPECT_LE(next.top(i).logprob(), next.top(std::max(i - 1, 0)).logprob());
    mass += std::exp(next.top(i).logprob());
  }
  EXPECT_LE(mass, 1.0 + 1e-4);
  EXPECT_EQ(next.token_id(), next.top(0).token_id()) << "greedy takes the likeliest";
  EXPECT_NEAR(next.logprob(), next.top(0).logprob(), 1e-5);
}

TEST_F(GenerateE2e, StopStringEndsBeforeItself) {
  v1::GenerateRequest request = AsciiRequest(RandomPrompt(6), seed());
  const Output whole = Generate(request);
  ASSERT_GE(whole.text.size(), 14u) << whole.text;
  const std::string stop = whole.text.substr(10, 2);
  request.add_stop("never, ever");
  request.add_stop(stop);
  const Output stopped = Generate(request);
  EXPECT_EQ(stopped.finish.reason(), v1::FINISH_REASON_STOP_STRING);
  EXPECT_EQ(stopped.finish.matched_stop(), stop);
  EXPECT_EQ(stopped.text, whole.text.substr(0, whole.text.find(stop)));
}

TEST_F(GenerateE2e, StopTokenEndsIt) {
  v1::GenerateRequest request = AsciiRequest(RandomPrompt(6), seed());
  const Output whole = Generate(request);
  ASSERT_EQ(whole.ids.size(), 24u);
  const int32_t stop = whole.ids[8];
  const auto first = std::find(whole.ids.begin(), whole.ids.end(), stop) - whole.ids.begin();
  request.add_stop_token_ids(stop);
  const Output stopped = Generate(request);
  EXPECT_EQ(stopped.finish.reason(), v1::FINISH_REASON_STOP_TOKEN);
  EXPECT_EQ(stopped.text, whole.text.substr(0, first));
}

TEST_F(GenerateE2e, EndsAtCapacity) {
  const std::vector<int32_t> prompt = RandomPrompt(6);
  const client::Session session = Open(/*capacity=*/12);
  v1::GenerateRequest request = Request(prompt, 200);
  request.set_session_id(session.id());
  const Output output = Generate(request);
  EXPECT_EQ(output.finish.reason(), v1::FINISH_REASON_CAPACITY);
  const auto after = session.Get();
  ASSERT_TRUE(after.ok());
  EXPECT_EQ(after->length_tokens(), 12);
  EXPECT_FALSE(after->has_violation()) << "a full session is no violation";
}

// The model is so quick that a generation can end before its cancel arrives: then it is tried
// again.
TEST_F(GenerateE2e, CancelLeavesAnExactLength) {
  constexpr int kAttempts = 30;
  const std::vector<int32_t> prompt = RandomPrompt(6);
  const auto longest = kContextTokens - static_cast<int64_t>(prompt.size()) - 4;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const client::Session session = Open(/*capacity=*/kContextTokens);
    v1::GenerateRequest request = Request(prompt, kContextTokens);
    request.set_session_id(session.id());
    const auto finish =
        client().Generate(request, [](const v1::GenerateResponse::Token&) { return false; });
    ASSERT_TRUE(absl::IsCancelled(finish.status())) << finish.status();
    auto state = session.Get();
    for (int i = 0; i < 500 && state.ok() && state->state() != v1::Session::STATE_IDLE; ++i) {
      absl::SleepFor(absl::Milliseconds(10));
      state = session.Get();
    }
    ASSERT_TRUE(state.ok());
    ASSERT_EQ(state->state(), v1::Session::STATE_IDLE);
    const auto done = state->length_tokens() - static_cast<int64_t>(prompt.size());
    if (done >= longest) continue;
    const std::vector<int32_t> reference =
        Generate(Request(prompt, static_cast<int32_t>(done) + 4)).ids;
    ASSERT_TRUE(state->has_next_token_id());
    EXPECT_EQ(state->next_token_id(), reference[done]);
    EXPECT_EQ(StepTokens(session.id(), 4),
              std::vector<int32_t>(reference.begin() + done, reference.begin() + done + 4));
    return;
  }
  FAIL() << "no generation of " << kAttempts << " was cut short by its cancel";
}

TEST_F(GenerateE2e, TurnsReuseTheKvCache) {
  const std::vector<int32_t> prompt = RandomPrompt(6), more = RandomPrompt(3);
  const client::Session session = Open(/*capacity=*/128);
  v1::GenerateRequest request = Request(prompt, 5);
  request.set_session_id(session.id());
  const Output first = Generate(request);
  v1::GenerateRequest second = Request(more, 5);
  second.set_session_id(session.id());
  second.set_append_next_token(true);
  std::vector<int32_t> whole = prompt;
  whole.insert(whole.end(), first.ids.begin(), first.ids.end());
  whole.insert(whole.end(), more.begin(), more.end());
  EXPECT_EQ(Generate(second).ids, Generate(Request(whole, 5)).ids);
}

TEST_F(GenerateE2e, StepsOfSeveralSessionsShareAStream) {
  const std::vector<int32_t> prompt = RandomPrompt(6);
  const std::vector<int32_t> reference = Generate(Request(prompt, 8)).ids;
  std::vector<client::Session> sessions;
  for (int i = 0; i < 3; ++i) sessions.push_back(OpenWithPrompt(prompt));
  const auto stream = client().OpenStepStream();
  for (uint64_t tag = 0; tag < 24; ++tag) {
    v1::StepRequest request;
    request.set_session_id(sessions[tag % 3].id());
    request.set_tag(tag);
    ASSERT_TRUE(stream->Send(request).ok());
  }
  for (uint64_t tag = 0; tag < 24; ++tag) {
    const auto response = stream->Receive();
    ASSERT_TRUE(response.ok()) << response.status();
    EXPECT_EQ(response->tag(), tag);
    EXPECT_EQ(response->session_id(), sessions[tag % 3].id());
    EXPECT_EQ(response->result().appended_token_id(), reference[tag / 3]);
  }
  EXPECT_TRUE(stream->Finish().ok());
}

}  // namespace
}  // namespace latchd::e2e
