// The engine against Hugging Face transformers: expected answers in tests/golden, see its README.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/engine_harness.h"

namespace latchd {
namespace {

nlohmann::json ReadJson(const std::string& path) {
  std::ifstream in(path);
  nlohmann::json json = nlohmann::json::parse(in, nullptr, /*allow_exceptions=*/false);
  EXPECT_FALSE(json.is_discarded()) << path;
  return json;
}

std::vector<int32_t> Greedy(EngineHarness& harness, const std::vector<int32_t>& prompt,
                            int64_t tokens) {
  const SessionId session = harness.Open();
  const auto out = harness.Generate(
      {.session = session, .prompt = prompt, .max_tokens = tokens, .ignore_eos = true});
  EXPECT_EQ(out.summary.reason, FinishReason::kLength) << out.summary.error;
  EXPECT_TRUE(harness.engine().CloseSession(session).ok());
  return out.tokens;
}

// Largest difference from the expected logits, relative to the largest expected one.
double RelativeError(const std::vector<float>& got, const std::vector<float>& expected) {
  double error = 0, scale = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error = std::max(error, std::abs(double{got[i]} - expected[i]));
    scale = std::max(scale, std::abs(double{expected[i]}));
  }
  return std::isfinite(error) ? error / scale : 1e9;
}

class Architecture : public testing::TestWithParam<const char*> {};

TEST_P(Architecture, LogitsAndGreedyTokensEqualTransformers) {
  const std::string folder = SourcePath(std::string("tests/golden/arch/") + GetParam());
  const nlohmann::json expected = ReadJson(folder + "/expected.json");
  const auto prompt = expected["prompt_ids"].get<std::vector<int32_t>>();
  const auto logits = expected["last_logits"].get<std::vector<float>>();
  struct Case {
    const char* dtype;
    double tolerance;
  };
  for (const Case& c : {Case{"f32", 1e-3}, Case{"f16", 2e-2}, Case{"bf16", 2e-2}}) {
    // A chunk shorter than the prompt, so that prefill attends to an earlier chunk's KV.
    for (const int64_t chunk : {7, 64}) {
      EngineHarness harness(
          {.model_path = folder, .device = TestDevice(), .dtype = c.dtype, .prefill_chunk = chunk});
      ASSERT_TRUE(harness.status().ok()) << harness.status();
      const PrefillResult result = harness.Prefill(harness.Open(), prompt, /*logits=*/true);
      EXPECT_LE(RelativeError(result.next.logits, logits), c.tolerance)
          << c.dtype << " chunk " << chunk;
      if (std::string(c.dtype) == "f32") {
        const auto greedy = expected["greedy_ids"].get<std::vector<int32_t>>();
        EXPECT_EQ(Greedy(harness, prompt, static_cast<int64_t>(greedy.size())), greedy)
            << "chunk " << chunk;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, Architecture,
                         testing::Values("llama", "llama_bias", "llama_rope_linear",
                                         "llama_rope_llama3", "llama_tied_new_config",
                                         "mistral_window", "qwen2_sharded", "qwen2_tied", "qwen3"),
                         [](const auto& info) { return std::string(info.param); });

void CheckGolden(const std::string& model, const nlohmann::json& golden) {
  EngineHarness harness({.model_path = model,
                         .device = TestDevice(),
                         .dtype = "f32",
                         .kv_tokens = 2048,
                         .max_capacity = 512});
  ASSERT_TRUE(harness.status().ok()) << harness.status();
  ASSERT_NE(harness.engine().tokenizer(), nullptr);
  for (const nlohmann::json& c : golden["cases"]) {
    SCOPED_TRACE(c["name"].get<std::string>());
    const auto prompt = c["prompt_ids"].get<std::vector<int32_t>>();
    const auto ids = harness.engine().tokenizer()->Encode(c["prompt"].get<std::string>(),
                                                          {.add_special_tokens = false});
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, prompt);
    const auto greedy = c["greedy_ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(Greedy(harness, prompt, static_cast<int64_t>(greedy.size())), greedy);

    const SessionId session = harness.Open();
    const PrefillResult result = harness.Prefill(session, prompt, /*logits=*/true);
    EXPECT_TRUE(harness.engine().CloseSession(session).ok());
    const auto top = c["top_ids"].get<std::vector<int32_t>>();
    const auto top_logits = c["top_logits"].get<std::vector<float>>();
    const double scale = c["max_abs_logit"].get<double>();
    for (size_t i = 0; i < top.size(); ++i) {
      EXPECT_NEAR(result.next.logits[top[i]], top_logits[i], 1e-3 * scale) << "token " << top[i];
    }
  }
}

TEST(Parity, EmbeddedModelEqualsTransformers) {
  CheckGolden(SourcePath("models/tiny"), ReadJson(SourcePath("tests/golden/tiny_greedy.json")));
}

TEST(Parity, SmolLM2EqualsTransformers) {
  const char* model = std::getenv("LATCHD_TEST_MODEL");
  if (model == nullptr) GTEST_SKIP() << "LATCHD_TEST_MODEL names no SmolLM2 GGUF";
  CheckGolden(model, ReadJson(SourcePath("tests/golden/smollm2_greedy.json")));
}

}  // namespace
}  // namespace latchd
