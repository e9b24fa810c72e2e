#include "tests/support/model_files.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <utility>

#include "nlohmann/json.hpp"
#include "runtime/model/tensor_names.h"

namespace latchd::testing {
namespace {

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "test support: %s\n", what.c_str());
  std::abort();
}

std::string Text(std::string_view text) { return Bytes<uint64_t>(text.size()) + std::string(text); }

std::string DtypeName(DType dtype) {
  return dtype == DType::kF32 ? "F32" : dtype == DType::kF16 ? "F16" : "BF16";
}

StorageType Storage(DType dtype) {
  return dtype == DType::kF32   ? StorageType::kF32
         : dtype == DType::kF16 ? StorageType::kF16
                                : StorageType::kBF16;
}

// ggml_type numbers in the order of StorageType.
constexpr uint32_t kGgmlTypes[] = {0, 1, 30, 8, 2, 3, 6, 7, 12, 13, 14};

void Pad(std::string* bytes, size_t alignment) {
  bytes->resize((bytes->size() + alignment - 1) / alignment * alignment);
}

}  // namespace

TempDir::TempDir() {
  std::string pattern = (std::filesystem::temp_directory_path() / "latchd_test_XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) Die("mkdtemp failed for " + pattern);
  path_ = pattern;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TempDir::path(std::string_view file) const {
  return file.empty() ? path_.string() : (path_ / file).string();
}

void WriteFile(const std::string& path, std::string_view bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!out.flush()) Die("cannot write " + path);
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) Die("cannot read " + path);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

std::string SafetensorsBytes(std::string_view header, std::string_view data) {
  return Text(header) + std::string(data);
}

std::string SafetensorsBytes(const std::vector<TestTensor>& tensors) {
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", "pt"}};
  std::string data;
  for (const TestTensor& tensor : tensors) {
    const size_t begin = data.size();
    data += tensor.data;
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return SafetensorsBytes(text, data);
}

void WriteSafetensors(const std::string& path, const std::vector<TestTensor>& tensors) {
  WriteFile(path, SafetensorsBytes(tensors));
}

GgufWriter& GgufWriter::Raw(std::string_view key, GgufType type, std::string_view value) {
  entries_.push_back({std::string(key), Bytes(static_cast<uint32_t>(type)) + std::string(value)});
  return *this;
}

GgufWriter& GgufWriter::Uint32(std::string_view key, uint32_t value) {
  return Raw(key, GgufType::kUint32, Bytes(value));
}
GgufWriter& GgufWriter::Uint64(std::string_view key, uint64_t value) {
  return Raw(key, GgufType::kUint64, Bytes(value));
}
GgufWriter& GgufWriter::Float32(std::string_view key, float value) {
  return Raw(key, GgufType::kFloat32, Bytes(value));
}
GgufWriter& GgufWriter::Bool(std::string_view key, bool value) {
  return Raw(key, GgufType::kBool, Bytes<uint8_t>(value));
}
GgufWriter& GgufWriter::String(std::string_view key, std::string_view value) {
  return Raw(key, GgufType::kString, Text(value));
}

GgufWriter& GgufWriter::Strings(std::string_view key, const std::vector<std::string>& values) {
  std::string out =
      Bytes(static_cast<uint32_t>(GgufType::kString)) + Bytes<uint64_t>(values.size());
  for (const std::string& value : values) out += Text(value);
  return Raw(key, GgufType::kArray, out);
}

GgufWriter& GgufWriter::Ints(std::string_view key, const std::vector<int32_t>& values) {
  std::string out = Bytes(static_cast<uint32_t>(GgufType::kInt32)) + Bytes<uint64_t>(values.size());
  for (const int32_t value : values) out += Bytes(value);
  return Raw(key, GgufType::kArray, out);
}

GgufWriter& GgufWriter::Floats(std::string_view key, const std::vector<float>& values) {
  std::string out =
      Bytes(static_cast<uint32_t>(GgufType::kFloat32)) + Bytes<uint64_t>(values.size());
  for (const float value : values) out += Bytes(value);
  return Raw(key, GgufType::kArray, out);
}

GgufWriter& GgufWriter::Tensor(TestTensor tensor) {
  tensors_.push_back(std::move(tensor));
  return *this;
}

GgufWriter& GgufWriter::Drop(std::string_view name) {
  const size_t dropped =
      std::erase_if(entries_, [&](const Entry& e) { return e.key == name; }) +
      std::erase_if(tensors_, [&](const TestTensor& t) { return t.name == name; });
  if (dropped == 0) Die("nothing to drop: " + std::string(name));
  return *this;
}

std::string GgufWriter::Build() const {
  constexpr size_t kAlignment = 32;
  std::string out = "GGUF" + Bytes(version_) + Bytes<uint64_t>(tensors_.size()) +
                    Bytes<uint64_t>(entries_.size());
  for (const Entry& entry : entries_) out += Text(entry.key) + entry.value;
  std::string data;
  for (const TestTensor& tensor : tensors_) {
    out += Text(tensor.name) + Bytes(static_cast<uint32_t>(tensor.shape.size()));
    for (auto extent = tensor.shape.rbegin(); extent != tensor.shape.rend(); ++extent)
      out += Bytes(*extent);
    Pad(&data, kAlignment);
    out += Bytes(kGgmlTypes[static_cast<size_t>(tensor.type)]) + Bytes<uint64_t>(data.size());
    data += tensor.data;
  }
  Pad(&out, kAlignment);
  return out + data;
}

size_t GgufWriter::OffsetAfter(std::string_view name) const {
  const size_t at = Build().find(Text(name));
  if (at == std::string::npos) Die("no such name: " + std::string(name));
  return at + sizeof(uint64_t) + name.size();
}

ModelConfig TinyConfig(const std::string& architecture) {
  ModelConfig config;
  config.architecture = architecture;
  config.hidden = 64;
  config.layers = 2;
  config.q_heads = 4;
  config.kv_heads = 2;
  config.head_dim = 16;
  config.feed_forward = 96;
  config.vocab = 96;
  config.context_tokens = 128;
  config.norm_eps = 1e-5f;
  config.rotary_dim = 16;
  config.tied_embeddings = architecture == "LlamaForCausalLM";
  config.qkv_bias = architecture == "Qwen2ForCausalLM";
  config.qk_norm = architecture == "Qwen3ForCausalLM";
  if (architecture == "MistralForCausalLM") config.sliding_window = 24;
  config.bos_token = 1;
  config.eos_tokens = {2};
  return config;
}

std::string ConfigJson(const ModelConfig& c) {
  nlohmann::ordered_json json = {{"architectures", {c.architecture}},
                                 {"hidden_act", "silu"},
                                 {"hidden_size", c.hidden},
                                 {"num_hidden_layers", c.layers},
                                 {"num_attention_heads", c.q_heads},
                                 {"num_key_value_heads", c.kv_heads},
                                 {"head_dim", c.head_dim},
                                 {"intermediate_size", c.feed_forward},
                                 {"vocab_size", c.vocab},
                                 {"max_position_embeddings", c.context_tokens},
                                 {"rms_norm_eps", c.norm_eps},
                                 {"rope_theta", c.rope_theta},
                                 {"attention_bias", c.output_bias},
                                 {"mlp_bias", c.mlp_bias},
                                 {"tie_word_embeddings", c.tied_embeddings},
                                 {"eos_token_id", c.eos_tokens}};
  if (c.bos_token.has_value()) json["bos_token_id"] = *c.bos_token;
  if (c.sliding_window > 0) {
    json["sliding_window"] = c.sliding_window;
    json["use_sliding_window"] = true;
    json["max_window_layers"] = 0;
  }
  if (c.rope_scaling.kind == RopeScaling::Kind::kLinear) {
    json["rope_scaling"] = {{"rope_type", "linear"}, {"factor", c.rope_scaling.factor}};
  } else if (c.rope_scaling.kind == RopeScaling::Kind::kLlama3) {
    json["rope_scaling"] = {
        {"rope_type", "llama3"},
        {"factor", c.rope_scaling.factor},
        {"low_freq_factor", c.rope_scaling.low_freq_factor},
        {"high_freq_factor", c.rope_scaling.high_freq_factor},
        {"original_max_position_embeddings", c.rope_scaling.original_context_tokens}};
  }
  return json.dump(1);
}

std::vector<TestTensor> TinyTensors(const ModelConfig& config, uint64_t seed, DType dtype,
                                    bool gguf_names) {
  const NameStyle style = gguf_names ? NameStyle::kGguf : NameStyle::kHuggingFace;
  const std::unique_ptr<ModelSource> random = RandomModel(config, seed);
  std::vector<TestTensor> out;
  for (int64_t layer = -1; layer < config.layers; ++layer) {
    for (const ExpectedTensor& expected : ExpectedTensors(config, style, layer)) {
      const WeightShape shape = expected.shape;
      TestTensor tensor{.name = expected.name, .dtype = DtypeName(dtype), .type = Storage(dtype)};
      tensor.shape = expected.is_vector ? std::vector<int64_t>{shape.columns}
                                        : std::vector<int64_t>{shape.rows, shape.columns};
      tensor.data.resize(static_cast<size_t>(shape.rows * shape.columns) * SizeOf(dtype));
      if (!random->ReadRows(expected.role, expected.layer, 0, shape.rows, dtype, tensor.data.data())
               .ok()) {
        Die("RandomModel refused " + expected.name);
      }
      out.push_back(std::move(tensor));
    }
  }
  return out;
}

void MakeTinyModel(const std::string& folder, const ModelConfig& config, uint64_t seed,
                   DType dtype) {
  WriteFile(folder + "/config.json", ConfigJson(config));
  WriteSafetensors(folder + "/model.safetensors",
                   TinyTensors(config, seed, dtype, /*gguf_names=*/false));
}

GgufWriter TinyGguf(const ModelConfig& c, uint64_t seed, DType dtype) {
  const std::string name = c.qk_norm                              ? "qwen3"
                           : c.architecture == "Qwen2ForCausalLM" ? "qwen2"
                                                                  : "llama";
  GgufWriter out;
  out.String("general.architecture", name);
  out.String("general.name", "tiny");
  out.Uint32(name + ".block_count", static_cast<uint32_t>(c.layers));
  out.Uint32(name + ".context_length", static_cast<uint32_t>(c.context_tokens));
  out.Uint32(name + ".embedding_length", static_cast<uint32_t>(c.hidden));
  out.Uint32(name + ".feed_forward_length", static_cast<uint32_t>(c.feed_forward));
  out.Uint32(name + ".attention.head_count", static_cast<uint32_t>(c.q_heads));
  out.Uint32(name + ".attention.head_count_kv", static_cast<uint32_t>(c.kv_heads));
  out.Uint32(name + ".attention.key_length", static_cast<uint32_t>(c.head_dim));
  out.Uint32(name + ".attention.value_length", static_cast<uint32_t>(c.head_dim));
  out.Float32(name + ".attention.layer_norm_rms_epsilon", c.norm_eps);
  out.Float32(name + ".rope.freq_base", c.rope_theta);
  if (c.bos_token.has_value())
    out.Uint32("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(*c.bos_token));
  if (!c.eos_tokens.empty())
    out.Uint32("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(c.eos_tokens[0]));
  for (TestTensor& tensor : TinyTensors(c, seed, dtype, /*gguf_names=*/true))
    out.Tensor(std::move(tensor));
  return out;
}

}  // namespace latchd::testing
