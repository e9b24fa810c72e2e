#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/api/ops.h"
#include "runtime/device/device.h"
#include "runtime/model/model_config.h"

namespace latchd {

// The buffers a step program runs over, sized once for `max_rows`. Addresses never change, so every
// bucket's graph may bake them in.
struct Activations {
  int32_t max_rows = 0;
  int32_t logit_rows = 0;

  Buffer inputs_host;       // pinned: StepInputsHeader, then StepRow[max_rows]
  Buffer inputs;            // the same on the device
  Buffer meta;              // RowMeta[max_rows]
  Buffer x;                 // f32 [max_rows, hidden], the residual stream
  Buffer qkv;               // f32 [max_rows, (q_heads + 2 kv_heads) * head_dim]
  Buffer q;                 // f32 [max_rows, q_heads, head_dim]
  Buffer attention;         // [max_rows, q_heads * head_dim] of the backend's activation dtype
  Buffer mlp;               // [max_rows, feed_forward] of the backend's activation dtype
  Buffer logits;            // f32 [logit_rows, vocab]
  Buffer results;           // host-visible RowResult[logit_rows]
  Buffer workspace;         // shared by all ops but sampling
  Buffer sample_workspace;  // stays zero-filled between steps
  DType activation_dtype = DType::kF32;

  // A prefill samples only its last row: logit_rows is 1 there, max_rows for decode.
  static absl::StatusOr<std::unique_ptr<Activations>> Create(const ModelConfig& config, DType dtype,
                                                             int32_t max_rows, int32_t logit_rows,
                                                             Device& device);

  StepInputsHeader& header() { return *inputs_host.data<StepInputsHeader>(); }
  StepRow* rows() {
    return reinterpret_cast<StepRow*>(inputs_host.data<std::byte>() + sizeof(StepInputsHeader));
  }
  const StepInputsHeader* device_header() const { return inputs.data<StepInputsHeader>(); }
  const StepRow* device_rows() const {
    return reinterpret_cast<const StepRow*>(inputs.data<std::byte>() + sizeof(StepInputsHeader));
  }
};

}  // namespace latchd
