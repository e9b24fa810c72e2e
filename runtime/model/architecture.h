#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "runtime/model/model_config.h"

namespace latchd {

// How one architecture differs from the common decoder, and what its config leaves unsaid. Adding
// an architecture that fits ModelConfig is adding a row to the table in architecture.cc.
struct Architecture {
  enum class Window : uint8_t {
    kNone,         // no sliding window, whatever the config says (as transformers)
    kAlways,       // sliding_window, unless null (Mistral)
    kWhenEnabled,  // sliding_window, only with use_sliding_window (Qwen)
  };
  std::string_view hf_name;    // config.json "architectures"
  std::string_view gguf_name;  // "general.architecture"; empty: the files say "llama"
  bool qkv_bias;               // always has Q, K and V biases
  bool qk_norm;
  bool attention_bias_key;   // honours "attention_bias" (Q, K, V and output biases)
  bool mlp_bias_key;         // honours "mlp_bias"
  bool gguf_interleaved;     // GGUF files hold Q and K permuted for rotary pairs (2i, 2i+1)
  bool kv_heads_default;     // num_key_value_heads may be absent: as many as query heads
  int64_t head_dim_default;  // 0: hidden_size / num_attention_heads
  Window window;
};

// Null for an architecture that latchd does not know.
const Architecture* FindHfArchitecture(std::string_view name);
const Architecture* FindGgufArchitecture(std::string_view name);
// "LlamaForCausalLM, MistralForCausalLM, ..." for a refusal.
std::string HfArchitectureNames();
std::string GgufArchitectureNames();

// What must hold between the fields of any config: positive and bounded sizes, whole groups, an
// even rotary width, token ids inside the vocabulary. INVALID_ARGUMENT naming the ModelConfig
// field. Bounds are far above any real model; they keep products inside int64.
absl::Status CheckConfig(const std::string& file, const ModelConfig& config);

}  // namespace latchd
