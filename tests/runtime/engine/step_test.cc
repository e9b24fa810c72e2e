// Steps through the engine on the embedded model: capture against eager, prefill against steps,
// isolation of rows.

#include <cmath>
#include <future>
#include <random>

#include "gtest/gtest.h"
#include "runtime/engine_parts.h"
#include "tests/support/engine_harness.h"

namespace latchd {
namespace {

constexpr int32_t kVocab = 1536;

std::vector<int32_t> RandomTokens(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % kVocab);
  return tokens;
}

class Step : public testing::TestWithParam<const char*> {
 protected:
  EngineOptions Options() {
    return {.model_path = SourcePath("models/tiny"), .device = TestDevice(), .dtype = GetParam()};
  }
};

TEST_P(Step, CapturedEqualsEagerBitForBit) {
  Metrics metrics;
  auto parts = EngineParts::Build(Options(), metrics, nullptr, nullptr);
  ASSERT_TRUE(parts.ok()) << parts.status();
  StepRunner& runner = *(*parts)->runner;
  KvCache& kv = *(*parts)->kv;
  const int32_t captured = *kv.Open(512), eager = *kv.Open(512);
  // Two rows of one replay against the same tokens run op by op, over 256 steps: logits, tokens and
  // KV.
  std::vector<float> a, b;
  int32_t token = 7;
  for (int32_t length = 0; length < 256; ++length) {
    const StepRow row = {captured, token, length, kRowSample, 0, length};
    auto first = runner.Decode({row});
    ASSERT_TRUE(first.ok()) << first.status();
    const RowResult result = (*first)[0];
    ASSERT_TRUE(runner.ReadDecodeLogits(0, a).ok());
    StepRow other = row;
    other.slot = eager;
    auto second = runner.DecodeEager({other});
    ASSERT_TRUE(second.ok()) << second.status();
    ASSERT_TRUE(runner.ReadDecodeLogits(0, b).ok());
    ASSERT_EQ(a, b) << "step " << length;
    ASSERT_EQ(result.token, (*second)[0].token);
    ASSERT_EQ(result.logprob, (*second)[0].logprob);
    ASSERT_EQ(result.latch.mask, 0u);
    token = result.token;
  }
  EXPECT_EQ(*kv.Digest(captured, 256), *kv.Digest(eager, 256));
}

TEST_P(Step, PrefillThenStepEqualsLongerPrefill) {
  EngineHarness harness(Options());
  ASSERT_TRUE(harness.status().ok()) << harness.status();
  const std::vector<int32_t> tokens =
      RandomTokens(101, testing::UnitTest::GetInstance()->random_seed());
  const PrefillResult whole = harness.Prefill(harness.Open(), tokens, /*logits=*/true);

  const SessionId session = harness.Open();
  harness.Prefill(session, {tokens.begin(), tokens.end() - 1});
  const StepResult step = harness.Step(session, tokens.back(), /*logits=*/true);
  ASSERT_FALSE(step.violation);
  EXPECT_EQ(step.length_tokens, 101);
  const double tolerance = std::string(GetParam()) == "f32" ? 1e-3 : 3e-2;
  double scale = 0;
  for (const float logit : whole.next.logits) scale = std::max(scale, std::abs(double{logit}));
  for (int32_t i = 0; i < kVocab; ++i) {
    ASSERT_NEAR(step.next.logits[i], whole.next.logits[i], tolerance * scale) << "logit " << i;
  }
}

TEST_P(Step, ForcedTokensEqualOwnTokens) {
  EngineHarness harness(Options());
  ASSERT_TRUE(harness.status().ok()) << harness.status();
  const std::vector<int32_t> prompt = RandomTokens(9, 3);
  const SessionId own = harness.Open(), forced = harness.Open(), generated = harness.Open();
  std::vector<int32_t> tokens = {harness.Prefill(own, prompt).next.token};
  harness.Prefill(forced, prompt);
  for (int i = 0; i < 40; ++i) {
    const StepResult chosen = harness.Step(own, std::nullopt, /*logits=*/true);
    const StepResult given = harness.Step(forced, tokens.back(), /*logits=*/true);
    ASSERT_EQ(chosen.next.logits, given.next.logits);
    EXPECT_EQ(chosen.appended_token, tokens.back());
    tokens.push_back(chosen.next.token);
  }
  EXPECT_EQ(*harness.engine().KvDigest(own), *harness.engine().KvDigest(forced));
  const auto out = harness.Generate(
      {.session = generated, .prompt = prompt, .max_tokens = 41, .ignore_eos = true});
  EXPECT_EQ(out.tokens, tokens);
}

TEST_P(Step, SeededSamplingDoesNotDependOnOtherSessions) {
  EngineHarness harness(Options());
  ASSERT_TRUE(harness.status().ok()) << harness.status();
  const SamplingOptions sampling = {.temperature = 0.9f, .top_k = 50, .top_p = 0.95f, .seed = 11};
  const auto request = [&](SessionId session, std::vector<int32_t> prompt) {
    return GenerateRequest{.session = session,
                           .prompt = std::move(prompt),
                           .max_tokens = 60,
                           .sampling = sampling,
                           .ignore_eos = true};
  };
  const std::vector<int32_t> alone =
      harness.Generate(request(harness.Open(), RandomTokens(5, 1))).tokens;

  constexpr int kOthers = 6;
  std::promise<void> done[kOthers];
  for (int i = 0; i < kOthers; ++i) {
    harness.engine().Generate(
        request(harness.Open(), RandomTokens(3 + i, 100 + i)), [](const GeneratedToken&) {},
        [&done, i](const GenerateSummary&) { done[i].set_value(); });
  }
  EXPECT_EQ(harness.Generate(request(harness.Open(), RandomTokens(5, 1))).tokens, alone);
  for (std::promise<void>& other : done) other.get_future().wait();
}

INSTANTIATE_TEST_SUITE_P(DTypes, Step, testing::Values("f32", "f16", "bf16"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace latchd
