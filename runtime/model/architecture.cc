#include "runtime/model/architecture.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "runtime/model/file_error.h"

namespace latchd {
namespace {

using Window = Architecture::Window;

// Defaults are those of the transformers configuration classes.
constexpr Architecture kArchitectures[] = {
    {.hf_name = "LlamaForCausalLM",
     .gguf_name = "llama",
     .qkv_bias = false,
     .qk_norm = false,
     .attention_bias_key = true,
     .mlp_bias_key = true,
     .gguf_interleaved = true,
     .kv_heads_default = true,
     .head_dim_default = 0,
     .window = Window::kNone},
    {.hf_name = "MistralForCausalLM",
     .gguf_name = "",
     .qkv_bias = false,
     .qk_norm = false,
     .attention_bias_key = false,
     .mlp_bias_key = false,
     .gguf_interleaved = true,
     .kv_heads_default = false,
     .head_dim_default = 0,
     .window = Window::kAlways},
    {.hf_name = "Qwen2ForCausalLM",
     .gguf_name = "qwen2",
     .qkv_bias = true,
     .qk_norm = false,
     .attention_bias_key = false,
     .mlp_bias_key = false,
     .gguf_interleaved = false,
     .kv_heads_default = false,
     .head_dim_default = 0,
     .window = Window::kWhenEnabled},
    {.hf_name = "Qwen3ForCausalLM",
     .gguf_name = "qwen3",
     .qkv_bias = false,
     .qk_norm = true,
     .attention_bias_key = true,
     .mlp_bias_key = false,
     .gguf_interleaved = false,
     .kv_heads_default = false,
     .head_dim_default = 128,
     .window = Window::kWhenEnabled},
};

template <typename Field>
std::string Names(Field field) {
  std::string out;
  for (const Architecture& known : kArchitectures) {
    if ((known.*field).empty()) continue;
    absl::StrAppend(&out, out.empty() ? "" : ", ", std::string(known.*field));
  }
  return out;
}

template <typename Field>
const Architecture* Lookup(Field field, std::string_view name) {
  for (const Architecture& known : kArchitectures) {
    if (!name.empty() && known.*field == name) return &known;
  }
  return nullptr;
}

struct Bound {
  const char* field;
  int64_t value, min, max;
};

}  // namespace

const Architecture* FindHfArchitecture(std::string_view name) {
  return Lookup(&Architecture::hf_name, name);
}
const Architecture* FindGgufArchitecture(std::string_view name) {
  return Lookup(&Architecture::gguf_name, name);
}
std::string HfArchitectureNames() { return Names(&Architecture::hf_name); }
std::string GgufArchitectureNames() { return Names(&Architecture::gguf_name); }

absl::Status CheckConfig(const std::string& file, const ModelConfig& config) {
  const Bound bounds[] = {
      {"hidden size", config.hidden, 1, 1 << 20},
      {"layers", config.layers, 1, 4096},
      {"attention heads", config.q_heads, 1, 1 << 14},
      {"key/value heads", config.kv_heads, 1, config.q_heads},
      {"head dimension", config.head_dim, 1, 1 << 14},
      {"feed-forward size", config.feed_forward, 1, 1 << 22},
      {"vocabulary size", config.vocab, 1, 1 << 24},
      {"context length", config.context_tokens, 1, 1 << 30},
      {"rotary dimension", config.rotary_dim, 2, config.head_dim},
  };
  for (const Bound& bound : bounds) {
    if (bound.value >= bound.min && bound.value <= bound.max) continue;
    return Malformed(file, bound.field, absl::StrCat(bound.min, " to ", bound.max),
                     absl::StrCat(bound.value));
  }
  if (config.q_heads % config.kv_heads != 0) {
    return Malformed(file, "key/value heads",
                     absl::StrCat("a divisor of the ", config.q_heads, " attention heads"),
                     absl::StrCat(config.kv_heads));
  }
  if (config.rotary_dim % 2 != 0) {
    return Malformed(file, "rotary dimension", "an even number", absl::StrCat(config.rotary_dim));
  }
  if (config.sliding_window != -1 && config.sliding_window < 1) {
    return Malformed(file, "sliding window", "at least 1 token",
                     absl::StrCat(config.sliding_window));
  }
  if (!(config.norm_eps >= 0.0f && config.norm_eps < 1.0f)) {
    return Malformed(file, "norm epsilon", "0 to 1", absl::StrCat(config.norm_eps));
  }
  if (!(config.rope_theta > 0.0f && std::isfinite(config.rope_theta))) {
    return Malformed(file, "rope theta", "a positive number", absl::StrCat(config.rope_theta));
  }
  const RopeScaling& rope = config.rope_scaling;
  if (!(rope.factor > 0.0f && std::isfinite(rope.factor))) {
    return Malformed(file, "rope scaling factor", "a positive number", absl::StrCat(rope.factor));
  }
  if (rope.kind == RopeScaling::Kind::kLlama3) {
    if (!(rope.low_freq_factor > 0.0f && rope.high_freq_factor > rope.low_freq_factor &&
          std::isfinite(rope.high_freq_factor))) {
      return Malformed(file, "rope scaling high_freq_factor",
                       "more than low_freq_factor, which is positive",
                       absl::StrCat(rope.high_freq_factor, " and ", rope.low_freq_factor));
    }
    if (rope.original_context_tokens < 1 || rope.original_context_tokens > (1 << 30)) {
      return Malformed(file, "rope scaling original context", "1 to 2^30",
                       absl::StrCat(rope.original_context_tokens));
    }
  }
  if (config.bos_token.has_value() &&
      (*config.bos_token < 0 || *config.bos_token >= config.vocab)) {
    return Malformed(file, "bos token", absl::StrCat("0 to ", config.vocab - 1),
                     absl::StrCat(*config.bos_token));
  }
  for (const int32_t token : config.eos_tokens) {
    if (token >= 0 && token < config.vocab) continue;
    return Malformed(file, "eos token", absl::StrCat("0 to ", config.vocab - 1),
                     absl::StrCat(token));
  }
  return absl::OkStatus();
}

}  // namespace latchd
