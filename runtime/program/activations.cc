#include "runtime/program/activations.h"

#include <utility>

namespace latchd {

absl::StatusOr<std::unique_ptr<Activations>> Activations::Create(const ModelConfig& config,
                                                                 DType dtype, int32_t max_rows,
                                                                 int32_t logit_rows,
                                                                 Device& device) {
  auto out = std::make_unique<Activations>();
  out->max_rows = max_rows;
  out->logit_rows = logit_rows;
  out->activation_dtype = device.ops().activation_dtype(dtype);

  const size_t rows = max_rows;
  const size_t activation = SizeOf(out->activation_dtype);
  const size_t q_width = config.q_heads * config.head_dim;
  const size_t qkv_width = (config.q_heads + 2 * config.kv_heads) * config.head_dim;
  const size_t inputs = sizeof(StepInputsHeader) + rows * sizeof(StepRow);
  struct Wanted {
    Buffer* buffer;
    size_t bytes;
    MemoryKind kind;
  };
  const Wanted wanted[] = {
      {&out->inputs_host, inputs, MemoryKind::kPinned},
      {&out->inputs, inputs, MemoryKind::kDevice},
      {&out->meta, rows * sizeof(RowMeta), MemoryKind::kDevice},
      {&out->x, rows * config.hidden * sizeof(float), MemoryKind::kDevice},
      {&out->qkv, rows * qkv_width * sizeof(float), MemoryKind::kDevice},
      {&out->q, rows * q_width * sizeof(float), MemoryKind::kDevice},
      {&out->attention, rows * q_width * activation, MemoryKind::kDevice},
      {&out->mlp, rows * config.feed_forward * activation, MemoryKind::kDevice},
      {&out->logits, logit_rows * config.vocab * sizeof(float), MemoryKind::kDevice},
      {&out->results, logit_rows * sizeof(RowResult), MemoryKind::kHostVisible},
  };
  for (const Wanted& want : wanted) {
    absl::StatusOr<Buffer> buffer = device.Allocate(want.bytes, want.kind, "activations");
    if (!buffer.ok()) return buffer.status();
    *want.buffer = *std::move(buffer);
  }
  return out;
}

}  // namespace latchd
