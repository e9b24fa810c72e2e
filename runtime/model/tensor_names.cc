#include "runtime/model/tensor_names.h"

#include "absl/strings/str_cat.h"
#include "runtime/model/gguf_config.h"

namespace latchd {
namespace {

struct RoleInfo {
  WeightRole role;
  std::string_view label;
  bool in_layer;
  bool is_vector;
  std::string_view hf;    // after "model.layers.N." in layers
  std::string_view gguf;  // after "blk.N." in layers
};

// In the order of WeightRole, which is the index.
constexpr RoleInfo kRoles[] = {
    {WeightRole::kEmbedding, "embedding", false, false, "model.embed_tokens.weight",
     "token_embd.weight"},
    {WeightRole::kOutputHead, "output head", false, false, "lm_head.weight", "output.weight"},
    {WeightRole::kFinalNorm, "final norm", false, true, "model.norm.weight", "output_norm.weight"},
    {WeightRole::kAttentionNorm, "attention norm", true, true, "input_layernorm.weight",
     "attn_norm.weight"},
    {WeightRole::kMlpNorm, "MLP norm", true, true, "post_attention_layernorm.weight",
     "ffn_norm.weight"},
    {WeightRole::kQ, "Q", true, false, "self_attn.q_proj.weight", "attn_q.weight"},
    {WeightRole::kK, "K", true, false, "self_attn.k_proj.weight", "attn_k.weight"},
    {WeightRole::kV, "V", true, false, "self_attn.v_proj.weight", "attn_v.weight"},
    {WeightRole::kQBias, "Q bias", true, true, "self_attn.q_proj.bias", "attn_q.bias"},
    {WeightRole::kKBias, "K bias", true, true, "self_attn.k_proj.bias", "attn_k.bias"},
    {WeightRole::kVBias, "V bias", true, true, "self_attn.v_proj.bias", "attn_v.bias"},
    {WeightRole::kQNorm, "Q norm", true, true, "self_attn.q_norm.weight", "attn_q_norm.weight"},
    {WeightRole::kKNorm, "K norm", true, true, "self_attn.k_norm.weight", "attn_k_norm.weight"},
    {WeightRole::kAttentionOutput, "attention output", true, false, "self_attn.o_proj.weight",
     "attn_output.weight"},
    {WeightRole::kAttentionOutputBias, "attention output bias", true, true, "self_attn.o_proj.bias",
     "attn_output.bias"},
    {WeightRole::kGate, "gate", true, false, "mlp.gate_proj.weight", "ffn_gate.weight"},
    {WeightRole::kUp, "up", true, false, "mlp.up_proj.weight", "ffn_up.weight"},
    {WeightRole::kDown, "down", true, false, "mlp.down_proj.weight", "ffn_down.weight"},
    {WeightRole::kGateBias, "gate bias", true, true, "mlp.gate_proj.bias", "ffn_gate.bias"},
    {WeightRole::kUpBias, "up bias", true, true, "mlp.up_proj.bias", "ffn_up.bias"},
    {WeightRole::kDownBias, "down bias", true, true, "mlp.down_proj.bias", "ffn_down.bias"},
};
static_assert(std::size(kRoles) == kWeightRoles);

constexpr bool RolesAreInOrder() {
  for (size_t i = 0; i < std::size(kRoles); ++i) {
    if (static_cast<size_t>(kRoles[i].role) != i) return false;
  }
  return true;
}
static_assert(RolesAreInOrder());

const RoleInfo& Info(WeightRole role) { return kRoles[static_cast<size_t>(role)]; }

bool EndsWith(std::string_view text, std::string_view suffix) {
  return text.size() >= suffix.size() && text.substr(text.size() - suffix.size()) == suffix;
}

}  // namespace

std::string_view Name(WeightRole role) { return Info(role).label; }

bool IsLayerRole(WeightRole role) { return Info(role).in_layer; }

bool IsUsed(WeightRole role, const ModelConfig& config) {
  switch (role) {
    case WeightRole::kOutputHead: return !config.tied_embeddings;
    case WeightRole::kQBias:
    case WeightRole::kKBias:
    case WeightRole::kVBias: return config.qkv_bias;
    case WeightRole::kQNorm:
    case WeightRole::kKNorm: return config.qk_norm;
    case WeightRole::kAttentionOutputBias: return config.output_bias;
    case WeightRole::kGateBias:
    case WeightRole::kUpBias:
    case WeightRole::kDownBias: return config.mlp_bias;
    default: return true;
  }
}

WeightShape ShapeOf(WeightRole role, const ModelConfig& config) {
  const int64_t q = config.q_heads * config.head_dim;
  const int64_t kv = config.kv_heads * config.head_dim;
  switch (role) {
    case WeightRole::kEmbedding:
    case WeightRole::kOutputHead: return {config.vocab, config.hidden};
    case WeightRole::kFinalNorm:
    case WeightRole::kAttentionNorm:
    case WeightRole::kMlpNorm:
    case WeightRole::kAttentionOutputBias:
    case WeightRole::kDownBias: return {1, config.hidden};
    case WeightRole::kQ: return {q, config.hidden};
    case WeightRole::kK:
    case WeightRole::kV: return {kv, config.hidden};
    case WeightRole::kQBias: return {1, q};
    case WeightRole::kKBias:
    case WeightRole::kVBias: return {1, kv};
    case WeightRole::kQNorm:
    case WeightRole::kKNorm: return {1, config.head_dim};
    case WeightRole::kAttentionOutput: return {config.hidden, q};
    case WeightRole::kGate:
    case WeightRole::kUp: return {config.feed_forward, config.hidden};
    case WeightRole::kGateBias:
    case WeightRole::kUpBias: return {1, config.feed_forward};
    case WeightRole::kDown: return {config.hidden, config.feed_forward};
  }
  return {};
}

std::string TensorName(WeightRole role, int64_t layer, NameStyle style) {
  const RoleInfo& info = Info(role);
  const bool hf = style == NameStyle::kHuggingFace;
  const std::string name(hf ? info.hf : info.gguf);
  if (!info.in_layer) return name;
  return absl::StrCat(hf ? "model.layers." : "blk.", layer, ".", name);
}

std::vector<ExpectedTensor> ExpectedTensors(const ModelConfig& config, NameStyle style,
                                            int64_t layer) {
  std::vector<ExpectedTensor> out;
  for (const RoleInfo& info : kRoles) {
    if (info.in_layer != (layer >= 0) || !IsUsed(info.role, config)) continue;
    const int64_t at = info.in_layer ? layer : 0;
    out.push_back({info.role, at, TensorName(info.role, at, style), ShapeOf(info.role, config),
                   info.is_vector});
  }
  return out;
}

bool IsHarmlessExtra(std::string_view name, const ModelConfig& config, NameStyle style) {
  if (style == NameStyle::kGguf) return name == kRopeFreqsTensor;
  if (EndsWith(name, ".rotary_emb.inv_freq")) return true;
  return config.tied_embeddings && name == "lm_head.weight";
}

}  // namespace latchd
