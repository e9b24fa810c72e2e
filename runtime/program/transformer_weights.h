#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/api/ops.h"
#include "runtime/device/device.h"
#include "runtime/model/model_source.h"

namespace latchd {

// Device addresses of one block. Null vectors are absent in the model.
struct LayerWeights {
  const float* attention_norm = nullptr;  // [hidden]
  WeightView qkv;                         // [(q_heads + 2 kv_heads) * head_dim, hidden]
  const float* qkv_bias = nullptr;
  const float* q_norm = nullptr;  // [head_dim]
  const float* k_norm = nullptr;
  WeightView output;  // [hidden, q_heads * head_dim]
  const float* output_bias = nullptr;
  const float* mlp_norm = nullptr;  // [hidden]
  WeightView gate_up;               // [2 * feed_forward, hidden], rows interleaved by 8
  const float* gate_up_bias = nullptr;
  WeightView down;  // [hidden, feed_forward]
  const float* down_bias = nullptr;
};

// A model's weights on a device, in the layout that its kernels stream. Immutable
// after Load, but for fault injection into final_norm.
class TransformerWeights {
 public:
  // Bytes of matrices in the dtype that they are loaded as.
  using Progress = std::function<void(int64_t done_bytes, int64_t total_bytes)>;

  // Reads every tensor as `dtype` (vectors as f32). `rotary_rows` positions of RoPE table are made.
  // The device must outlive the result.
  static absl::StatusOr<std::unique_ptr<TransformerWeights>> Load(const ModelSource& source,
                                                                  Device& device, DType dtype,
                                                                  int64_t rotary_rows,
                                                                  const Progress& progress);

  const ModelConfig& config() const { return config_; }
  DType dtype() const { return dtype_; }
  int64_t rotary_rows() const { return rotary_rows_; }

  WeightView embedding;  // [vocab, hidden]
  WeightView head;       // the same when tied
  float* final_norm = nullptr;
  const float* rope_cos = nullptr;  // [rotary_rows, rotary_dim / 2]
  const float* rope_sin = nullptr;
  std::vector<LayerWeights> layers;

 private:
  friend class WeightLoader;
  ModelConfig config_;
  DType dtype_ = DType::kF32;
  int64_t rotary_rows_ = 0;
  std::vector<Buffer> buffers_;
};

}  // namespace latchd
