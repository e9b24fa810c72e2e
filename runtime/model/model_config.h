#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/api/dtype.h"

namespace latchd {

struct RopeScaling {
  enum class Kind : uint8_t { kNone, kLinear, kLlama3 };
  Kind kind = Kind::kNone;
  float factor = 1.0f;
  float low_freq_factor = 1.0f;         // llama3
  float high_freq_factor = 4.0f;        // llama3
  int64_t original_context_tokens = 0;  // llama3
};

// One description of every decoder that latchd serves, read from config.json or GGUF metadata:
// pre-norm blocks of grouped-query attention and a SiLU-gated MLP. Architectures differ only in
// these fields.
struct ModelConfig {
  std::string architecture;  // as the file names it: "LlamaForCausalLM", "qwen2", ...
  std::string name;          // for people
  int64_t hidden = 0;
  int64_t layers = 0;
  int64_t q_heads = 0;
  int64_t kv_heads = 0;  // divides q_heads
  int64_t head_dim = 0;
  int64_t feed_forward = 0;
  int64_t vocab = 0;
  int64_t context_tokens = 0;  // the longest the model was made for
  float norm_eps = 1e-5f;
  float rope_theta = 10000.0f;
  int64_t rotary_dim = 0;           // <= head_dim
  bool rotary_interleaved = false;  // pairs (2i, 2i+1): llama-architecture GGUF files
  RopeScaling rope_scaling;
  int64_t sliding_window = -1;  // tokens, -1: off
  bool qkv_bias = false;        // Qwen2
  bool output_bias = false;     // bias on the attention output projection (Llama attention_bias)
  bool mlp_bias = false;
  bool qk_norm = false;  // Qwen3
  bool tied_embeddings = false;
  DType file_dtype =
      DType::kF32;  // what --dtype auto takes: f32, f16 (also for quantised files) or bf16
  std::optional<int32_t> bos_token;
  std::vector<int32_t> eos_tokens;
};

}  // namespace latchd
