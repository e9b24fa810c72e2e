#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/model/model_config.h"
#include "runtime/model/model_source.h"

namespace latchd {

enum class NameStyle : uint8_t { kHuggingFace, kGguf };

// One tensor that a model of this config has.
struct ExpectedTensor {
  WeightRole role;
  int64_t layer;  // 0 for roles outside layers
  std::string name;
  WeightShape shape;
  bool is_vector;  // one dimension in the file instead of two
};

inline constexpr size_t kWeightRoles = static_cast<size_t>(WeightRole::kDownBias) + 1;

bool IsLayerRole(WeightRole role);
// False for roles that the config switches off, e.g. kQBias without qkv_bias, kOutputHead when
// tied.
bool IsUsed(WeightRole role, const ModelConfig& config);
WeightShape ShapeOf(WeightRole role, const ModelConfig& config);
// The name in files of that style; layers count from 0.
std::string TensorName(WeightRole role, int64_t layer, NameStyle style);

// The tensors outside layers, then layer by layer: each role that the config uses. `layer` -1:
// those outside layers.
std::vector<ExpectedTensor> ExpectedTensors(const ModelConfig& config, NameStyle style,
                                            int64_t layer);

// Tensors that files carry and decoding does not read as weights: rotary_emb.inv_freq buffers, the
// copy of tied embeddings, GGUF's rope_freqs.weight (gguf_config.cc turns it into rope scaling).
bool IsHarmlessExtra(std::string_view name, const ModelConfig& config, NameStyle style);

}  // namespace latchd
