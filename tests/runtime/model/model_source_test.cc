#include "runtime/model/model_source.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/api/convert.h"
#include "nlohmann/json.hpp"
#include "runtime/model/sha256.h"
#include "runtime/model/tensor_names.h"
#include "tests/support/model_files.h"

namespace latchd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TempDir;
using testing::TinyConfig;

const char* const kArchitectures[] = {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM",
                                      "Qwen3ForCausalLM"};

std::vector<float> Read(const ModelSource& model, WeightRole role, int64_t layer,
                        DType through = DType::kF32) {
  const WeightShape shape = *model.Shape(role, layer);
  std::string raw(static_cast<size_t>(shape.rows * shape.columns) * SizeOf(through), '\0');
  EXPECT_TRUE(model.ReadRows(role, layer, 0, shape.rows, through, raw.data()).ok());
  std::vector<float> out(static_cast<size_t>(shape.rows * shape.columns));
  ConvertToF32(through, raw.data(), out.data(), out.size());
  return out;
}

// Each role of each layer holds what `random` holds, as `dtype`; roles that the config switches off
// are absent.
void ExpectSameWeights(const ModelSource& model, const ModelSource& random, DType dtype) {
  for (size_t i = 0; i < kWeightRoles; ++i) {
    const auto role = static_cast<WeightRole>(i);
    for (int64_t layer = 0; layer < random.config().layers; ++layer) {
      SCOPED_TRACE(std::string(Name(role)) + " of layer " + std::to_string(layer));
      ASSERT_EQ(model.Has(role, layer), random.Has(role, layer));
      if (!model.Has(role, layer)) {
        EXPECT_EQ(model.Shape(role, layer).status().code(), absl::StatusCode::kNotFound);
        continue;
      }
      ASSERT_EQ(model.Shape(role, layer)->rows, random.Shape(role, layer)->rows);
      ASSERT_EQ(Read(model, role, layer), Read(random, role, layer, dtype));
    }
  }
}

TEST(ModelSourceTest, ReadsHuggingFaceFoldersOfEveryArchitecture) {
  const uint64_t seed = std::random_device{}();
  for (const char* architecture : kArchitectures) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      SCOPED_TRACE(std::string(architecture) + " seed " + std::to_string(seed));
      const TempDir dir;
      const ModelConfig config = TinyConfig(architecture);
      testing::MakeTinyModel(dir.path(), config, seed, dtype);
      const auto model = OpenModel(dir.path());
      ASSERT_TRUE(model.ok()) << model.status();
      const ModelConfig& read = (*model)->config();
      EXPECT_EQ(read.architecture, architecture);
      EXPECT_EQ(read.file_dtype, dtype);
      EXPECT_EQ(read.hidden, config.hidden);
      EXPECT_EQ(read.kv_heads, config.kv_heads);
      EXPECT_EQ(read.head_dim, config.head_dim);
      EXPECT_EQ(read.rotary_dim, config.rotary_dim);
      EXPECT_EQ(read.sliding_window, config.sliding_window);
      EXPECT_EQ(read.qkv_bias, config.qkv_bias);
      EXPECT_EQ(read.qk_norm, config.qk_norm);
      EXPECT_FALSE(read.rotary_interleaved);
      EXPECT_EQ(read.bos_token, config.bos_token);
      EXPECT_EQ(read.eos_tokens, config.eos_tokens);
      ExpectSameWeights(**model, *RandomModel(config, seed), dtype);
    }
  }
}

TEST(ModelSourceTest, ReadsGgufFilesOfEveryArchitecture) {
  const uint64_t seed = std::random_device{}();
  for (const char* architecture : kArchitectures) {
    SCOPED_TRACE(std::string(architecture) + " seed " + std::to_string(seed));
    const TempDir dir;
    const ModelConfig config = TinyConfig(architecture);
    testing::WriteFile(dir.path("m.gguf"), testing::TinyGguf(config, seed, DType::kF16).Build());
    const auto model = OpenModel(dir.path("m.gguf"));
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ((*model)->config().vocab, config.vocab);
    EXPECT_EQ((*model)->config().tied_embeddings, config.tied_embeddings);
    EXPECT_EQ((*model)->config().rotary_interleaved, !config.qkv_bias && !config.qk_norm);
    EXPECT_EQ((*model)->config().file_dtype, DType::kF16);
    EXPECT_EQ((*model)->config().eos_tokens, config.eos_tokens);
    ExpectSameWeights(**model, *RandomModel(config, seed), DType::kF16);
  }
}

TEST(ModelSourceTest, ReadsPartsOfATensorAndRefusesRowsOutsideIt) {
  const TempDir dir;
  const ModelConfig config = TinyConfig("LlamaForCausalLM");
  testing::MakeTinyModel(dir.path(), config, 7, DType::kBF16);
  const auto model = OpenModel(dir.path());
  ASSERT_TRUE(model.ok()) << model.status();
  const std::vector<float> whole = Read(**model, WeightRole::kUp, 1);
  std::vector<float> part(5 * 64);
  ASSERT_TRUE((*model)->ReadRows(WeightRole::kUp, 1, 90, 5, DType::kF32, part.data()).ok());
  EXPECT_EQ(part, std::vector<float>(whole.begin() + 90 * 64, whole.begin() + 95 * 64));
  (*model)->ReleasePages();
  EXPECT_EQ(Read(**model, WeightRole::kUp, 1), whole);
  for (const auto& [begin, rows] : std::vector<std::pair<int64_t, int64_t>>{
           {-1, 1}, {96, 1}, {0, 97}, {1, INT64_MAX}, {INT64_MAX, 1}, {0, -1}}) {
    EXPECT_EQ((*model)->ReadRows(WeightRole::kUp, 1, begin, rows, DType::kF32, part.data()).code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_FALSE((*model)->Has(WeightRole::kUp, 2));
  EXPECT_FALSE((*model)->Has(WeightRole::kUp, -1));
  EXPECT_TRUE((*model)->Has(WeightRole::kFinalNorm, 99));
}

TEST(ModelSourceTest, FingerprintTellsModelsApart) {
  const TempDir a, b, c;
  ModelConfig config = TinyConfig("Qwen3ForCausalLM");
  testing::MakeTinyModel(a.path(), config, 1);
  testing::MakeTinyModel(b.path(), config, 2);  // other weights
  config.rope_theta = 5e5f;
  testing::MakeTinyModel(c.path(), config, 1);  // other config
  const std::string first = (*OpenModel(a.path()))->fingerprint();
  EXPECT_EQ(first.size(), 64u);
  EXPECT_EQ((*OpenModel(a.path()))->fingerprint(), first);
  EXPECT_NE((*OpenModel(b.path()))->fingerprint(), first);
  EXPECT_NE((*OpenModel(c.path()))->fingerprint(), first);
}

TEST(ModelSourceTest, Sha256MatchesThePublishedVectors) {
  EXPECT_EQ(Sha256Hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  Sha256 hash;
  hash.Update("a");
  hash.Update("bc");
  EXPECT_EQ(hash.Hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hash.Hex(), Sha256Hex(""));
}

TEST(ModelSourceTest, RandomModelIsDeterministicAndLooksNormal) {
  ModelConfig config = TinyConfig("Qwen2ForCausalLM");
  config.feed_forward = 4096;
  const auto a = RandomModel(config, 5), b = RandomModel(config, 5), c = RandomModel(config, 6);
  const std::vector<float> values = Read(*a, WeightRole::kUp, 0);
  EXPECT_EQ(values, Read(*b, WeightRole::kUp, 0));
  EXPECT_NE(values, Read(*c, WeightRole::kUp, 0));
  EXPECT_NE(values, Read(*a, WeightRole::kUp, 1));
  double sum = 0, squares = 0;
  for (const float v : values) {
    sum += v;
    squares += static_cast<double>(v) * v;
  }
  const auto n = static_cast<double>(values.size());
  EXPECT_NEAR(sum / n, 0.0, 5 * 0.02 / std::sqrt(n));
  EXPECT_NEAR(std::sqrt(squares / n), 0.02, 0.0005);
  for (const float v : Read(*a, WeightRole::kAttentionNorm, 0)) EXPECT_NEAR(v, 1.0f, 0.1f);
}

TEST(ModelSourceTest, GoldenCheckpointsOpen) {
  const std::filesystem::path root = LATCHD_GOLDEN_DIR "/arch";
  if (!std::filesystem::exists(root)) GTEST_SKIP() << "no " << root;
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    if (!std::filesystem::exists(entry.path() / "config.json")) continue;
    const auto model = OpenModel(entry.path().string());
    EXPECT_TRUE(model.ok()) << model.status();
  }
}

// The real file, when LATCHD_TEST_MODEL names SmolLM2-135M-Instruct.Q4_1.gguf: values equal the
// reference package's.
TEST(ModelSourceTest, SmolLm2EqualsTheReferencePackage) {
  const char* path = std::getenv("LATCHD_TEST_MODEL");
  if (path == nullptr) GTEST_SKIP() << "LATCHD_TEST_MODEL is not set";
  const auto model = OpenModel(path);
  ASSERT_TRUE(model.ok()) << model.status();
  const ModelConfig& config = (*model)->config();
  EXPECT_EQ(config.hidden, 576);
  EXPECT_EQ(config.layers, 30);
  EXPECT_EQ(config.q_heads, 9);
  EXPECT_EQ(config.kv_heads, 3);
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_EQ(config.feed_forward, 1536);
  EXPECT_EQ(config.vocab, 49152);
  EXPECT_EQ(config.context_tokens, 8192);
  EXPECT_EQ(config.rope_theta, 100000.0f);
  EXPECT_TRUE(config.rotary_interleaved);
  EXPECT_TRUE(config.tied_embeddings);
  EXPECT_EQ(config.file_dtype, DType::kF16);
  EXPECT_EQ(config.bos_token, 1);
  EXPECT_THAT(config.eos_tokens, ElementsAre(2));

  const auto golden =
      nlohmann::json::parse(testing::ReadFile(LATCHD_GOLDEN_DIR "/smollm2_q4_1.json"));
  size_t compared = 0;
  for (size_t i = 0; i < kWeightRoles; ++i) {
    for (int64_t layer = 0; layer < config.layers; ++layer) {
      const auto role = static_cast<WeightRole>(i);
      if (layer > 0 && !IsLayerRole(role)) continue;
      const auto found = golden.find(TensorName(role, layer, NameStyle::kGguf));
      if (found == golden.end()) continue;
      const std::vector<float> values = Read(**model, role, layer);
      const std::string_view bytes(reinterpret_cast<const char*>(values.data()),
                                   values.size() * sizeof(float));
      EXPECT_EQ(Sha256Hex(bytes), (*found)["sha256_f32"]) << found.key();
      ++compared;
    }
  }
  EXPECT_EQ(compared, golden.size());
}

}  // namespace
}  // namespace latchd
