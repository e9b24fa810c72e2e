#include "runtime/model/hf_config.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/model/architecture.h"
#include "runtime/model/file_error.h"
#include "runtime/model/json_file.h"

namespace latchd {
namespace {

absl::Status Unsupported(const std::string& file, const std::string& what) {
  return absl::UnimplementedError(absl::StrCat(file, ": ", what));
}

absl::StatusOr<const Architecture*> ReadArchitecture(const std::string& file,
                                                     const nlohmann::json& config) {
  const auto list = config.find("architectures");
  if (list == config.end() || !list->is_array() || list->empty() || !list->front().is_string()) {
    return Malformed(file, "architectures", "a list with one name",
                     list == config.end() ? "nothing" : Shown(*list));
  }
  const auto& name = list->front().get_ref<const std::string&>();
  const Architecture* known = FindHfArchitecture(name);
  if (known == nullptr) {
    return Unsupported(file, absl::StrCat("architecture '", Printable(name), "' is not supported; ",
                                          HfArchitectureNames(), " are"));
  }
  return known;
}

// Keys that change the computation in ways latchd has no kernels for. Zero, false and null mean
// "off".
absl::Status RefuseUnknownFeatures(const std::string& file, const nlohmann::json& config) {
  constexpr const char* kRefused[] = {
      "num_local_experts",       "num_experts",         "n_routed_experts",
      "num_experts_per_tok",     "quantization_config", "attn_logit_softcapping",
      "final_logit_softcapping", "attention_sinks",     "compression_config",
  };
  for (const char* key : kRefused) {
    const auto found = config.find(key);
    if (found == config.end() || found->is_null()) continue;
    if (found->is_number() && found->get<double>() == 0) continue;
    if (found->is_boolean() && !found->get<bool>()) continue;
    return Unsupported(file, absl::StrCat(key, " is not supported (", Shown(*found), ")"));
  }
  return absl::OkStatus();
}

// Reads theta, partial factor and scaling. transformers 4: rope_theta beside rope_scaling; 5: all
// in rope_parameters.
absl::Status ReadRope(const std::string& file, JsonFields& fields, ModelConfig* out) {
  double theta = fields.Number("rope_theta", 10000.0);
  double partial = fields.Number("partial_rotary_factor", 1.0);
  const nlohmann::json* rope = nullptr;
  std::string where;
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const nlohmann::json* found = fields.Find(key);
    if (found == nullptr) continue;
    if (!found->is_object()) return Malformed(file, key, "an object or null", Shown(*found));
    rope = found;
    where = absl::StrCat(key, ".");
    break;
  }
  if (rope != nullptr) {
    JsonFields scaling(file, *rope, where);
    for (const auto& [key, value] : rope->items()) {
      if (value.is_object()) {
        return Unsupported(file,
                           absl::StrCat(where, Printable(key),
                                        ": rope parameters per layer type are not supported"));
      }
    }
    theta = scaling.Number("rope_theta", theta);
    partial = scaling.Number("partial_rotary_factor", partial);
    const std::string kind = scaling.Text("rope_type", scaling.Text("type", "default"));
    if (kind == "linear") {
      out->rope_scaling.kind = RopeScaling::Kind::kLinear;
      out->rope_scaling.factor = static_cast<float>(scaling.Number("factor"));
    } else if (kind == "llama3") {
      out->rope_scaling.kind = RopeScaling::Kind::kLlama3;
      out->rope_scaling.factor = static_cast<float>(scaling.Number("factor"));
      out->rope_scaling.low_freq_factor = static_cast<float>(scaling.Number("low_freq_factor"));
      out->rope_scaling.high_freq_factor = static_cast<float>(scaling.Number("high_freq_factor"));
      out->rope_scaling.original_context_tokens = scaling.Int("original_max_position_embeddings");
    } else if (kind != "default") {
      return Unsupported(file, absl::StrCat(where, "rope_type '", Printable(kind),
                                            "' is not supported; default, linear and llama3 are"));
    }
    if (!scaling.status().ok()) return scaling.status();
  }
  if (!(partial > 0.0 && partial <= 1.0)) {
    return Malformed(file, "partial_rotary_factor", "a number in (0, 1]", absl::StrCat(partial));
  }
  out->rope_theta = static_cast<float>(theta);
  out->rotary_dim =
      partial == 1.0
          ? out->head_dim
          : static_cast<int64_t>(std::min(static_cast<double>(out->head_dim), 1e6) * partial);
  return absl::OkStatus();
}

// One window for all layers, or none: a mixture is refused.
absl::Status ReadWindow(const std::string& file, const Architecture& architecture,
                        JsonFields& fields, ModelConfig* out) {
  const int64_t window = fields.Int("sliding_window", -1);
  switch (architecture.window) {
    case Architecture::Window::kNone: return absl::OkStatus();
    case Architecture::Window::kAlways: break;
    case Architecture::Window::kWhenEnabled: {
      if (!fields.Bool("use_sliding_window", false)) return absl::OkStatus();
      // Layers below max_window_layers attend in full.
      const int64_t full_layers =
          fields.Has("layer_types") ? 0 : fields.Int("max_window_layers", 28);
      if (full_layers >= out->layers) return absl::OkStatus();
      if (full_layers > 0) {
        return Unsupported(
            file,
            absl::StrCat("max_window_layers ", full_layers, " of ", out->layers,
                         ": layers with and without a sliding window are not supported together"));
      }
      break;
    }
  }
  if (const nlohmann::json* types = fields.Find("layer_types"); types != nullptr) {
    if (!types->is_array()) return Malformed(file, "layer_types", "a list", Shown(*types));
    const auto full = std::count(types->begin(), types->end(), "full_attention");
    const auto sliding = std::count(types->begin(), types->end(), "sliding_attention");
    const auto all = static_cast<std::ptrdiff_t>(types->size());
    if (full == all) return absl::OkStatus();
    if (sliding != all) {
      return Unsupported(
          file, "layer_types: only all full_attention or all sliding_attention is supported");
    }
  }
  if (!fields.Has("sliding_window")) return absl::OkStatus();
  if (window < 1)
    return Malformed(file, "sliding_window", "at least 1, or null", absl::StrCat(window));
  out->sliding_window = window;
  return absl::OkStatus();
}

// "eos_token_id": a number or a list of numbers; duplicates are dropped.
absl::Status AddEosTokens(const std::string& file, const nlohmann::json& object,
                          std::vector<int32_t>* out) {
  const auto found = object.find("eos_token_id");
  if (found == object.end() || found->is_null()) return absl::OkStatus();
  const nlohmann::json list = found->is_array() ? *found : nlohmann::json::array({*found});
  for (const nlohmann::json& id : list) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > INT32_MAX) {
      return Malformed(file, "eos_token_id", "a token id or a list of them", Shown(*found));
    }
    const auto token = id.get<int32_t>();
    if (std::find(out->begin(), out->end(), token) == out->end()) out->push_back(token);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelConfig> ParseHfConfig(const std::string& file, const nlohmann::json& config,
                                          const nlohmann::json& generation) {
  absl::StatusOr<const Architecture*> architecture = ReadArchitecture(file, config);
  if (!architecture.ok()) return architecture.status();
  if (absl::Status status = RefuseUnknownFeatures(file, config); !status.ok()) return status;
  const Architecture& traits = **architecture;

  ModelConfig out;
  JsonFields fields(file, config);
  out.architecture = std::string(traits.hf_name);
  out.hidden = fields.Int("hidden_size");
  out.layers = fields.Int("num_hidden_layers");
  out.q_heads = fields.Int("num_attention_heads");
  out.kv_heads = traits.kv_heads_default ? fields.Int("num_key_value_heads", out.q_heads)
                                         : fields.Int("num_key_value_heads");
  out.feed_forward = fields.Int("intermediate_size");
  out.vocab = fields.Int("vocab_size");
  out.context_tokens = fields.Int("max_position_embeddings");
  out.norm_eps = static_cast<float>(fields.Number("rms_norm_eps", 1e-6));
  out.tied_embeddings = fields.Bool("tie_word_embeddings", false);
  const bool attention_bias = traits.attention_bias_key && fields.Bool("attention_bias", false);
  out.qkv_bias = traits.qkv_bias || attention_bias;
  out.output_bias = attention_bias;
  out.mlp_bias = traits.mlp_bias_key && fields.Bool("mlp_bias", false);
  out.qk_norm = traits.qk_norm;
  if (!fields.status().ok()) return fields.status();
  if (traits.head_dim_default > 0 || fields.Has("head_dim")) {
    out.head_dim = fields.Int("head_dim", traits.head_dim_default);
  } else if (out.q_heads >= 1 && out.hidden % out.q_heads == 0) {
    out.head_dim = out.hidden / out.q_heads;
  } else {
    return Malformed(
        file, "num_attention_heads",
        absl::StrCat("a divisor of hidden_size ", out.hidden, ", as head_dim is absent"),
        absl::StrCat(out.q_heads));
  }

  const std::string activation = fields.Text("hidden_act", "silu");
  if (activation != "silu") {
    return Unsupported(
        file, absl::StrCat("hidden_act '", Printable(activation), "' is not supported; silu is"));
  }
  const int64_t bos = fields.Int("bos_token_id", -1);
  if (bos > INT32_MAX) fields.Fail("bos_token_id", "a token id", absl::StrCat(bos));
  if (fields.Has("bos_token_id")) out.bos_token = static_cast<int32_t>(bos);
  if (absl::Status status = ReadRope(file, fields, &out); !status.ok()) return status;
  if (absl::Status status = ReadWindow(file, traits, fields, &out); !status.ok()) return status;
  for (const nlohmann::json* object : {&config, &generation}) {
    if (!object->is_object()) continue;
    if (absl::Status status = AddEosTokens(file, *object, &out.eos_tokens); !status.ok())
      return status;
  }
  if (!fields.status().ok()) return fields.status();
  if (absl::Status status = CheckConfig(file, out); !status.ok()) return status;
  return out;
}

}  // namespace latchd
