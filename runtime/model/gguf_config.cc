#include "runtime/model/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/model/architecture.h"
#include "runtime/model/file_error.h"
#include "runtime/model/tensor_names.h"

namespace latchd {
namespace {

// Typed reads of "ARCH.key" and of plain keys. The first error sticks, so a caller reads everything
// and looks once.
class Fields {
 public:
  Fields(const GgufFile& file, std::string architecture)
      : file_(file), prefix_(std::move(architecture) + ".") {}

  std::string Key(const char* key) const { return prefix_ + key; }
  bool Has(const std::string& key) const { return file_.Find(key) != nullptr; }

  int64_t Int(const std::string& key) { return Take(file_.Int(key), int64_t{0}); }
  int64_t Int(const std::string& key, int64_t fallback) { return Has(key) ? Int(key) : fallback; }
  std::string Text(const std::string& key, const std::string& fallback) {
    return Has(key) ? std::string(Take(file_.String(key), std::string_view())) : fallback;
  }
  double Number(const std::string& key) {
    const double value = Take(file_.Float(key), 0.0);
    if (std::abs(value) <= std::numeric_limits<float>::max()) return value;
    Fail(Malformed(file_.name(), absl::StrCat("metadata '", key, "'"), "a finite number",
                   absl::StrCat(value)));
    return 0.0;
  }
  double Number(const std::string& key, double fallback) {
    return Has(key) ? Number(key) : fallback;
  }

  // A number, or an array (one per layer) whose elements are all the same.
  int64_t UniformInt(const std::string& key, int64_t fallback) {
    const GgufValue* value = file_.Find(key);
    if (value == nullptr || value->type != GgufType::kArray) return Int(key, fallback);
    const std::vector<int64_t> each = Take(file_.Ints(key), std::vector<int64_t>());
    if (!each.empty() &&
        std::all_of(each.begin(), each.end(), [&](int64_t v) { return v == each[0]; }))
      return each[0];
    Fail(absl::UnimplementedError(absl::StrCat(
        file_.name(), ": metadata '", key, "' differs between layers, which is not supported")));
    return fallback;
  }

  const absl::Status& status() const { return status_; }
  void Fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

 private:
  template <typename T>
  T Take(absl::StatusOr<T> value, T fallback) {
    if (value.ok()) return *std::move(value);
    Fail(value.status());
    return fallback;
  }

  const GgufFile& file_;
  std::string prefix_;
  absl::Status status_;
};

const GgufTensor* FindTensor(const GgufFile& file, const std::string& name) {
  const auto found = std::find_if(file.tensors().begin(), file.tensors().end(),
                                  [&](const GgufTensor& tensor) { return tensor.name == name; });
  return found == file.tensors().end() ? nullptr : &*found;
}

// The divisor that llama3 rope scaling applies to the frequency of rotary pair `i` (transformers
// modeling_rope_utils.py, _compute_llama3_parameters).
double Llama3Divisor(const ModelConfig& config, const RopeScaling& rope, int64_t i) {
  const double frequency =
      std::pow(static_cast<double>(config.rope_theta),
               -2.0 * static_cast<double>(i) / static_cast<double>(config.rotary_dim));
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  const auto context = static_cast<double>(rope.original_context_tokens);
  if (wavelength < context / rope.high_freq_factor) return 1.0;
  if (wavelength > context / rope.low_freq_factor) return rope.factor;
  const double smooth = (context / wavelength - rope.low_freq_factor) /
                        (rope.high_freq_factor - rope.low_freq_factor);
  return 1.0 / ((1.0 - smooth) / rope.factor + smooth);
}

// GGUF keeps the result of llama3 scaling, not its parameters. All Llama 3.x models share low 1,
// high 4 and 8192 tokens, and the slowest pair is divided by the whole factor: take that, and prove
// it against every divisor.
absl::Status ReadRopeFreqs(const GgufFile& file, ModelConfig* config) {
  const GgufTensor* tensor = FindTensor(file, kRopeFreqsTensor);
  if (tensor == nullptr) return absl::OkStatus();
  const std::string field = absl::StrCat("tensor '", kRopeFreqsTensor, "'");
  const int64_t pairs = config->rotary_dim / 2;
  if (tensor->type != StorageType::kF32 || tensor->shape != std::vector<int64_t>{pairs}) {
    return Malformed(file.name(), field, absl::StrCat("F32 [", pairs, "]"),
                     absl::StrCat(std::string(Traits(tensor->type).name), " of ",
                                  tensor->bytes.size(), " bytes"));
  }
  std::vector<float> divisors(static_cast<size_t>(pairs));
  Dequantize(tensor->type, tensor->bytes.data(), pairs, divisors.data());
  RopeScaling rope{.kind = RopeScaling::Kind::kLlama3,
                   .factor = divisors.back(),
                   .low_freq_factor = 1.0f,
                   .high_freq_factor = 4.0f,
                   .original_context_tokens = 8192};
  if (std::all_of(divisors.begin(), divisors.end(), [](float d) { return d == 1.0f; }))
    return absl::OkStatus();
  for (int64_t i = 0; i < pairs; ++i) {
    const double expected = Llama3Divisor(*config, rope, i);
    // The negation also catches NaN.
    if (!(std::abs(divisors[static_cast<size_t>(i)] - expected) <= 1e-3 * expected)) {
      return absl::UnimplementedError(
          absl::StrCat(file.name(), ": ", field, " is not Llama 3's rope scaling (pair ", i,
                       ": expected ", expected, ", got ", divisors[static_cast<size_t>(i)],
                       "), and other frequency tables are not supported"));
    }
  }
  if (config->rope_scaling.kind != RopeScaling::Kind::kNone) {
    return Malformed(file.name(), field, "no second rope scaling",
                     "rope.scaling.type linear as well");
  }
  config->rope_scaling = rope;
  return absl::OkStatus();
}

absl::Status ReadRope(const GgufFile& file, Fields& fields, ModelConfig* out) {
  out->rope_theta = static_cast<float>(fields.Number(fields.Key("rope.freq_base"), 10000.0));
  out->rotary_dim = fields.Int(fields.Key("rope.dimension_count"), out->head_dim);
  const std::string key = fields.Key("rope.scaling.type");
  // As llama.cpp: a factor without a type is linear.
  const bool has_factor =
      fields.Has(fields.Key("rope.scaling.factor")) || fields.Has(fields.Key("rope.scale_linear"));
  const std::string kind = fields.Text(key, has_factor ? "linear" : "none");
  if (kind == "linear") {
    out->rope_scaling.kind = RopeScaling::Kind::kLinear;
    const double legacy = fields.Number(fields.Key("rope.scale_linear"), 1.0);
    out->rope_scaling.factor =
        static_cast<float>(fields.Number(fields.Key("rope.scaling.factor"), legacy));
  } else if (kind != "none" && fields.status().ok()) {
    return absl::UnimplementedError(absl::StrCat(file.name(), ": metadata '", key, "': '",
                                                 Printable(kind),
                                                 "' is not supported; none and linear are"));
  }
  return fields.status();
}

absl::Status ReadTokens(const GgufFile& file, Fields& fields, ModelConfig* out) {
  const auto token = [&](const char* name) -> std::optional<int32_t> {
    const std::string key = absl::StrCat("tokenizer.ggml.", name);
    if (!fields.Has(key)) return std::nullopt;
    const int64_t id = fields.Int(key);
    if (id >= 0 && id < out->vocab) return static_cast<int32_t>(id);
    fields.Fail(Malformed(file.name(), absl::StrCat("metadata '", key, "'"),
                          absl::StrCat("0 to ", out->vocab - 1), absl::StrCat(id)));
    return std::nullopt;
  };
  out->bos_token = token("bos_token_id");
  // End of text, of turn and of message: each ends a generation.
  for (const char* name : {"eos_token_id", "eot_token_id", "eom_token_id"}) {
    const std::optional<int32_t> id = token(name);
    if (!id.has_value()) continue;
    if (std::find(out->eos_tokens.begin(), out->eos_tokens.end(), *id) == out->eos_tokens.end()) {
      out->eos_tokens.push_back(*id);
    }
  }
  return fields.status();
}

}  // namespace

absl::StatusOr<ModelConfig> ParseGgufConfig(const GgufFile& file) {
  absl::StatusOr<std::string_view> name = file.String("general.architecture");
  if (!name.ok()) return name.status();
  const Architecture* traits = FindGgufArchitecture(*name);
  if (traits == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat(file.name(), ": metadata 'general.architecture': '", Printable(*name),
                     "' is not supported; ", GgufArchitectureNames(), " are"));
  }
  ModelConfig out;
  Fields fields(file, std::string(*name));
  if (fields.Int(fields.Key("expert_count"), 0) != 0) {
    return absl::UnimplementedError(absl::StrCat(file.name(), ": metadata '",
                                                 fields.Key("expert_count"),
                                                 "': mixture of experts is not supported"));
  }
  out.architecture = std::string(*name);
  out.name = fields.Text("general.name", "");
  out.hidden = fields.Int(fields.Key("embedding_length"));
  out.layers = fields.Int(fields.Key("block_count"));
  out.q_heads = fields.UniformInt(fields.Key("attention.head_count"), 0);
  out.kv_heads = fields.UniformInt(fields.Key("attention.head_count_kv"), out.q_heads);
  out.feed_forward = fields.UniformInt(fields.Key("feed_forward_length"), 0);
  out.context_tokens = fields.Int(fields.Key("context_length"));
  out.norm_eps = static_cast<float>(fields.Number(fields.Key("attention.layer_norm_rms_epsilon")));
  out.sliding_window = fields.Int(fields.Key("attention.sliding_window"), -1);
  if (out.sliding_window == 0) out.sliding_window = -1;
  const int64_t head_dim_default = out.q_heads > 0 ? out.hidden / out.q_heads : 0;
  out.head_dim = fields.Int(fields.Key("attention.key_length"), head_dim_default);
  const int64_t value_length = fields.Int(fields.Key("attention.value_length"), out.head_dim);
  if (!fields.status().ok()) return fields.status();
  if (value_length != out.head_dim) {
    return absl::UnimplementedError(absl::StrCat(
        file.name(), ": metadata '", fields.Key("attention.value_length"), "': heads of ",
        value_length, " values and ", out.head_dim, " keys are not supported"));
  }
  const auto has = [&](WeightRole role) {
    return FindTensor(file, TensorName(role, 0, NameStyle::kGguf)) != nullptr;
  };
  const std::string embedding_name = TensorName(WeightRole::kEmbedding, 0, NameStyle::kGguf);
  const GgufTensor* embedding = FindTensor(file, embedding_name);
  if (embedding == nullptr) {
    return Malformed(file.name(), absl::StrCat("tensor '", embedding_name, "'"), "a tensor",
                     "nothing");
  }
  out.vocab = embedding->shape.front();
  out.tied_embeddings = !has(WeightRole::kOutputHead);
  out.qkv_bias = traits->qkv_bias || has(WeightRole::kQBias);
  out.output_bias = has(WeightRole::kAttentionOutputBias);
  out.mlp_bias = has(WeightRole::kGateBias);
  out.qk_norm = traits->qk_norm;
  out.rotary_interleaved = traits->gguf_interleaved;
  if (absl::Status status = ReadRope(file, fields, &out); !status.ok()) return status;
  if (absl::Status status = CheckConfig(file.name(), out); !status.ok()) return status;
  if (absl::Status status = ReadRopeFreqs(file, &out); !status.ok()) return status;
  if (absl::Status status = ReadTokens(file, fields, &out); !status.ok()) return status;
  return out;
}

}  // namespace latchd
