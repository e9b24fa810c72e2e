#include <filesystem>
#include <functional>
#include <random>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "runtime/model/file_model.h"
#include "runtime/model/gguf_config.h"
#include "runtime/model/model_source.h"
#include "tests/support/model_files.h"

// Models that must be refused: a config or a set of files that does not fit together. Broken
// containers are the business of safetensors_test and gguf_test.

namespace latchd {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using testing::TempDir;
using testing::TestTensor;
using testing::TinyConfig;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;
constexpr auto kNotFound = absl::StatusCode::kNotFound;

struct Case {
  const char* name;
  const char* architecture;
  std::function<void(json&)> edit;
  absl::StatusCode code;
  const char* message;
};

TEST(HostileModelTest, ConfigsThatAreRefused) {
  const char* const llama = "LlamaForCausalLM";
  const char* const qwen2 = "Qwen2ForCausalLM";
  const Case cases[] = {
      {"no architecture", llama, [](json& c) { c.erase("architectures"); }, kInvalid,
       "architectures: expected a list"},
      {"unknown architecture", llama, [](json& c) { c["architectures"] = {"GPT2LMHeadModel"}; },
       kUnimplemented, "architecture 'GPT2LMHeadModel' is not supported; LlamaForCausalLM"},
      {"missing size", llama, [](json& c) { c.erase("hidden_size"); }, kInvalid,
       "hidden_size: expected an integer, got nothing"},
      {"text size", llama, [](json& c) { c["hidden_size"] = "64"; }, kInvalid,
       "hidden_size: expected an integer"},
      {"2^63 layers", llama, [](json& c) { c["num_hidden_layers"] = 1ull << 63; }, kInvalid,
       "num_hidden_layers"},
      {"many layers", llama, [](json& c) { c["num_hidden_layers"] = 1ll << 60; }, kInvalid,
       "layers: expected 1 to"},
      {"one layer more", llama, [](json& c) { c["num_hidden_layers"] = 3; }, kInvalid,
       "tensor 'model.layers.2.input_layernorm.weight': expected a tensor [64], got nothing"},
      {"one layer less", llama, [](json& c) { c["num_hidden_layers"] = 1; }, kUnimplemented,
       "tensor 'model.layers.1.input_layernorm.weight' is not part of a LlamaForCausalLM model of "
       "1 layers"},
      {"heads", llama, [](json& c) { c["num_key_value_heads"] = 3; }, kInvalid,
       "key/value heads: expected a divisor"},
      {"zero heads", llama, [](json& c) { c["num_attention_heads"] = 0; }, kInvalid,
       "attention heads"},
      {"zero heads, no head_dim", llama,
       [](json& c) {
         c["num_attention_heads"] = 0;
         c.erase("head_dim");
       },
       kInvalid, "num_attention_heads: expected a divisor of hidden_size"},
      {"negative head_dim", llama, [](json& c) { c["head_dim"] = -16; }, kInvalid,
       "head dimension"},
      {"huge head_dim", llama, [](json& c) { c["head_dim"] = INT64_MAX; }, kInvalid,
       "head dimension"},
      {"wrong vocabulary", llama, [](json& c) { c["vocab_size"] = 95; }, kInvalid,
       "tensor 'model.embed_tokens.weight' shape: expected [95, 64], got [96, 64]"},
      {"activation", llama, [](json& c) { c["hidden_act"] = "gelu"; }, kUnimplemented,
       "hidden_act 'gelu'"},
      {"yarn", llama,
       [](json& c) {
         c["rope_scaling"] = {{"type", "yarn"}, {"factor", 4.0}};
       },
       kUnimplemented, "rope_scaling.rope_type 'yarn' is not supported"},
      {"dynamic, new spelling", llama,
       [](json& c) {
         c["rope_parameters"] = {{"rope_type", "dynamic"}};
       },
       kUnimplemented, "rope_parameters.rope_type 'dynamic'"},
      {"rope per layer type", llama,
       [](json& c) {
         c["rope_parameters"] = {{"full_attention", {{"rope_type", "default"}}}};
       },
       kUnimplemented, "rope_parameters.full_attention"},
      {"linear without factor", llama,
       [](json& c) {
         c["rope_scaling"] = {{"type", "linear"}};
       },
       kInvalid, "rope_scaling.factor: expected a number"},
      {"rope is a list", llama, [](json& c) { c["rope_scaling"] = {1}; }, kInvalid,
       "rope_scaling: expected an object"},
      {"theta 0", llama, [](json& c) { c["rope_theta"] = 0; }, kInvalid,
       "rope theta: expected a positive number"},
      {"theta 1e300", llama, [](json& c) { c["rope_theta"] = 1e300; }, kInvalid,
       "rope_theta: expected a number"},
      {"experts", llama, [](json& c) { c["num_local_experts"] = 8; }, kUnimplemented,
       "num_local_experts"},
      {"quantised", llama,
       [](json& c) {
         c["quantization_config"] = {{"quant_method", "gptq"}};
       },
       kUnimplemented, "quantization_config is not supported"},
      {"bias tensors missing", llama, [](json& c) { c["attention_bias"] = true; }, kInvalid,
       "q_proj.bias"},
      {"bias unannounced", qwen2, [](json& c) { c["architectures"] = {"LlamaForCausalLM"}; },
       kUnimplemented, "tensor 'model.layers.0.self_attn.q_proj.bias' is not part of"},
      {"untied without head", llama, [](json& c) { c["tie_word_embeddings"] = false; }, kInvalid,
       "'lm_head.weight'"},
      {"eos outside", llama, [](json& c) { c["eos_token_id"] = 96; }, kInvalid,
       "eos token: expected 0 to 95, got 96"},
      {"eos text", llama, [](json& c) { c["eos_token_id"] = {"</s>"}; }, kInvalid,
       "eos_token_id: expected a token"},
      {"mixed windows", qwen2,
       [](json& c) {
         c.update({{"use_sliding_window", true}, {"sliding_window", 8}, {"max_window_layers", 1}});
       },
       kUnimplemented, "max_window_layers 1 of 2"},
      {"mixed layer types", qwen2,
       [](json& c) {
         c.update({{"use_sliding_window", true},
                   {"sliding_window", 8},
                   {"layer_types", {"full_attention", "sliding_attention"}}});
       },
       kUnimplemented, "layer_types"},
  };
  for (const Case& broken : cases) {
    SCOPED_TRACE(broken.name);
    const TempDir dir;
    testing::MakeTinyModel(dir.path(), TinyConfig(broken.architecture), 3);
    json config = json::parse(testing::ReadFile(dir.path("config.json")));
    broken.edit(config);
    testing::WriteFile(dir.path("config.json"), config.dump());
    const auto model = OpenModel(dir.path());
    ASSERT_FALSE(model.ok());
    EXPECT_EQ(model.status().code(), broken.code) << model.status();
    EXPECT_THAT(std::string(model.status().message()), HasSubstr(broken.message));
    EXPECT_THAT(std::string(model.status().message()), HasSubstr(dir.path()));
  }
}

TEST(HostileModelTest, ConfigFilesThatAreRefused) {
  const TempDir dir;
  const auto refuse = [&](const char* text, const char* message) {
    testing::WriteFile(dir.path("config.json"), text);
    EXPECT_THAT(std::string(OpenModel(dir.path()).status().message()), HasSubstr(message));
  };
  EXPECT_EQ(OpenModel(dir.path()).status().code(), kNotFound);
  EXPECT_EQ(OpenModel(dir.path("absent")).status().code(), kNotFound);
  refuse("", "config.json: file: expected JSON");
  refuse("[1]", "expected a JSON object, got array");
  refuse("{\"a\":", "expected JSON");
  refuse(std::string(100'000, '[').c_str(), "JSON nesting: expected at most 32");
  refuse(std::string(2 << 20, ' ').c_str(), "file size: expected at most 1048576");
  refuse(testing::ConfigJson(TinyConfig("LlamaForCausalLM")).c_str(),
         "neither model.safetensors nor");
  testing::WriteFile(dir.path("pytorch_model.bin"), "x");
  EXPECT_THAT(std::string(OpenModel(dir.path()).status().message()),
              HasSubstr("convert it to safetensors"));
}

// Splits a model in two shards with an index.
void MakeSharded(const std::string& folder, json* index) {
  const ModelConfig config = TinyConfig("LlamaForCausalLM");
  testing::WriteFile(folder + "/config.json", testing::ConfigJson(config));
  std::vector<TestTensor> shards[2];
  for (TestTensor& tensor : testing::TinyTensors(config, 4, DType::kF32, false)) {
    const bool second = tensor.name.find("layers.1") != std::string::npos;
    (*index)["weight_map"][tensor.name] = second ? "m-2.safetensors" : "m-1.safetensors";
    shards[second].push_back(std::move(tensor));
  }
  testing::WriteSafetensors(folder + "/m-1.safetensors", shards[0]);
  testing::WriteSafetensors(folder + "/m-2.safetensors", shards[1]);
}

TEST(HostileModelTest, Indexes) {
  const char* const norm = "model.norm.weight";
  const struct {
    const char* name;
    std::function<void(json&)> edit;
    const char* message;  // empty: opens
  } cases[] = {
      {"well-formed", [](json&) {}, ""},
      {"no map", [](json& i) { i.erase("weight_map"); }, "weight_map: expected an object"},
      {"empty map", [](json& i) { i["weight_map"] = json::object(); },
       "weight_map: expected an object"},
      {"parent folder", [&](json& i) { i["weight_map"][norm] = "../m-1.safetensors"; },
       "in the same folder, got"},
      {"absolute", [&](json& i) { i["weight_map"][norm] = "/etc/passwd"; }, "in the same folder"},
      {"the index itself", [&](json& i) { i["weight_map"][norm] = "model.safetensors.index.json"; },
       "in the same folder"},
      {"NUL", [&](json& i) { i["weight_map"][norm] = std::string("m-1") + '\0' + ".safetensors"; },
       "in the same folder"},
      {"a number", [&](json& i) { i["weight_map"][norm] = 1; }, "in the same folder"},
      {"missing shard", [&](json& i) { i["weight_map"][norm] = "m-3.safetensors"; },
       "m-3.safetensors"},
      {"wrong shard", [&](json& i) { i["weight_map"][norm] = "m-2.safetensors"; },
       "weight_map 'model.norm.weight': expected a tensor of m-2.safetensors, got one of "
       "m-1.safetensors"},
      {"tensor nobody has", [](json& i) { i["weight_map"]["x"] = "m-1.safetensors"; },
       "weight_map 'x'"},
  };
  for (const auto& broken : cases) {
    SCOPED_TRACE(broken.name);
    const TempDir dir;
    json index;
    MakeSharded(dir.path(), &index);
    broken.edit(index);
    testing::WriteFile(dir.path("model.safetensors.index.json"), index.dump());
    const auto model = OpenModel(dir.path());
    EXPECT_EQ(model.ok(), *broken.message == '\0') << model.status();
    if (!model.ok()) EXPECT_THAT(std::string(model.status().message()), HasSubstr(broken.message));
  }
}

TEST(HostileModelTest, TensorsThatAreRefusedOrIgnored) {
  const auto open = [](const char* architecture,
                       const std::function<void(std::vector<TestTensor>&)>& edit) {
    const TempDir dir;
    const ModelConfig config = TinyConfig(architecture);
    testing::WriteFile(dir.path("config.json"), testing::ConfigJson(config));
    std::vector<TestTensor> tensors = testing::TinyTensors(config, 5, DType::kF32, false);
    edit(tensors);
    testing::WriteSafetensors(dir.path("model.safetensors"), tensors);
    return OpenModel(dir.path()).status();
  };
  const auto add = [](const char* name) {
    return [name](std::vector<TestTensor>& t) {
      t.push_back({.name = name, .dtype = "F32", .shape = {8}, .data = std::string(32, '\0')});
    };
  };
  EXPECT_TRUE(open("LlamaForCausalLM", add("model.layers.0.self_attn.rotary_emb.inv_freq")).ok());
  EXPECT_TRUE(open("LlamaForCausalLM", add("lm_head.weight")).ok());
  const absl::Status unknown =
      open("LlamaForCausalLM", add("model.layers.0.mlp.experts.0.w1.weight"));
  EXPECT_EQ(unknown.code(), kUnimplemented);
  EXPECT_THAT(std::string(unknown.message()),
              HasSubstr("'model.layers.0.mlp.experts.0.w1.weight' is not part of"));
  const absl::Status dtype = open("LlamaForCausalLM", [](auto& t) { t[3].dtype = "I32"; });
  EXPECT_EQ(dtype.code(), kUnimplemented);
  EXPECT_THAT(std::string(dtype.message()), HasSubstr("dtype: I32 is not supported"));
  const absl::Status flat = open("LlamaForCausalLM", [](auto& t) { t[0].shape = {96 * 64}; });
  EXPECT_THAT(std::string(flat.message()), HasSubstr("shape: expected [96, 64], got [6144]"));
}

TEST(HostileModelTest, GgufModelsThatAreRefused) {
  const auto refuse = [](const testing::GgufWriter& writer, absl::StatusCode code,
                         const char* message) {
    const std::string bytes = writer.Build();
    auto file = GgufFile::Parse("m.gguf", bytes);
    ASSERT_TRUE(file.ok()) << file.status();
    const absl::Status status = MakeGgufModel(*std::move(file)).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  };
  const auto tiny = [] { return testing::TinyGguf(TinyConfig("LlamaForCausalLM"), 1); };
  refuse(tiny().Drop("general.architecture"), kNotFound,
         "metadata 'general.architecture' is missing");
  refuse(tiny().Drop("general.architecture").String("general.architecture", "gemma3"),
         kUnimplemented, "'gemma3'");
  refuse(tiny().Drop("llama.block_count"), kNotFound, "metadata 'llama.block_count' is missing");
  refuse(tiny().Drop("llama.block_count").Uint64("llama.block_count", 1ull << 62), kInvalid,
         "layers: expected 1 to");
  refuse(tiny().Drop("llama.embedding_length").String("llama.embedding_length", "x"), kInvalid,
         "expected an integer");
  refuse(tiny().Uint32("llama.expert_count", 8), kUnimplemented, "mixture of experts");
  refuse(tiny().String("llama.rope.scaling.type", "yarn"), kUnimplemented,
         "'yarn' is not supported");
  refuse(tiny().Drop("llama.attention.head_count_kv").Ints("llama.attention.head_count_kv", {2, 4}),
         kUnimplemented, "differs between layers");
  refuse(tiny().Drop("token_embd.weight"), kInvalid, "tensor 'token_embd.weight'");
  refuse(tiny().Drop("blk.1.ffn_up.weight"), kInvalid,
         "tensor 'blk.1.ffn_up.weight': expected a tensor [96, 64]");
  refuse(tiny().Tensor(
             {.name = "blk.0.ffn_gate_inp.weight", .shape = {1}, .data = std::string(4, 'x')}),
         kUnimplemented, "'blk.0.ffn_gate_inp.weight' is not part of a llama model");
  refuse(tiny().Tensor({.name = "rope_freqs.weight", .shape = {8}, .data = std::string(32, 'x')}),
         kUnimplemented, "'rope_freqs.weight' is not Llama 3's rope scaling");
  refuse(tiny().Tensor({.name = "rope_freqs.weight", .shape = {4}, .data = std::string(16, 'x')}),
         kInvalid, "'rope_freqs.weight': expected F32 [8]");
  refuse(tiny().Uint32("tokenizer.ggml.eot_token_id", 96), kInvalid,
         "eot_token_id': expected 0 to 95, got 96");
}

// Any single damaged byte or cut is either refused or leaves a model whose every tensor can be
// read.
TEST(HostileModelTest, RandomDamageNeverCrashes) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  ModelConfig config = TinyConfig("Qwen2ForCausalLM");
  config.layers = 1;
  const std::string gguf = testing::TinyGguf(config, 1).Build();
  const std::string tensors =
      testing::SafetensorsBytes(testing::TinyTensors(config, 1, DType::kF16, false));
  const json parsed = json::parse(testing::ConfigJson(config));
  std::vector<float> out(96 * 64);
  for (int i = 0; i < 3000; ++i) {
    const bool is_gguf = i % 2 == 0;
    std::string bytes = is_gguf ? gguf : tensors;
    const uint64_t header = is_gguf ? 2600 : 2000;  // most damage goes where it is parsed
    for (uint64_t n = random() % 4 + 1; n > 0; --n)
      bytes[random() % header] ^= static_cast<char>(1 << random() % 8);
    if (random() % 8 == 0) bytes.resize(random() % bytes.size());
    bytes.shrink_to_fit();
    absl::StatusOr<std::unique_ptr<ModelSource>> model = absl::UnknownError("");
    std::unique_ptr<SafetensorsFile> keep;
    if (is_gguf) {
      auto file = GgufFile::Parse("m.gguf", bytes);
      if (file.ok()) model = MakeGgufModel(*std::move(file));
    } else {
      auto file = SafetensorsFile::Parse("m.safetensors", bytes);
      if (!file.ok()) continue;
      HfFolder folder{.config = parsed};
      for (const auto& t : (*file)->tensors()) {
        folder.tensors.push_back({t.name, t.type, t.dtype, t.shape, t.bytes, nullptr});
      }
      folder.shards.push_back(*std::move(file));
      model = MakeHfModel("m", std::move(folder));
    }
    if (!model.ok()) continue;
    for (const auto role :
         {WeightRole::kEmbedding, WeightRole::kQ, WeightRole::kQBias, WeightRole::kDown}) {
      const WeightShape shape = *(*model)->Shape(role, 0);
      out.resize(static_cast<size_t>(shape.rows * shape.columns));
      EXPECT_TRUE((*model)->ReadRows(role, 0, 0, shape.rows, DType::kF32, out.data()).ok());
    }
  }
}

}  // namespace
}  // namespace latchd
