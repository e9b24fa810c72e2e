#include "runtime/program/transformer_builder.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace latchd {
namespace {

constexpr int32_t kNoLayer = -1;

}  // namespace

StepProgram TransformerBuilder::Decode(Activations& buffers, int32_t rows) const {
  StepProgram program = Body(buffers, rows, Phase::kDecode);
  Head(program, buffers, 0, rows);
  return program;
}

StepProgram TransformerBuilder::Prefill(Activations& buffers, int32_t rows, bool sample) const {
  StepProgram program = Body(buffers, rows, Phase::kPrefill);
  if (sample) Head(program, buffers, rows - 1, 1);
  return program;
}

StepProgram TransformerBuilder::Body(Activations& buffers, int32_t rows, Phase phase) const {
  const ModelConfig& config = weights_.config();
  StepProgram program;
  program.calls.push_back({UploadOp{.host_source = buffers.inputs_host.data(),
                                    .destination = buffers.inputs.data(),
                                    .bytes = sizeof(StepInputsHeader) + rows * sizeof(StepRow)},
                           kNoLayer, "inputs"});
  program.calls.push_back({MetadataOp{.inputs = buffers.device_rows(),
                                      .meta = buffers.meta.data<RowMeta>(),
                                      .tables = kv_.tables(),
                                      .rows = rows,
                                      .rotary_rows = static_cast<int32_t>(weights_.rotary_rows()),
                                      .vocab = static_cast<int32_t>(config.vocab)},
                           kNoLayer, "metadata"});
  program.calls.push_back({EmbedOp{.meta = buffers.meta.data<RowMeta>(),
                                   .table = weights_.embedding,
                                   .out = buffers.x.data<float>(),
                                   .tables = kv_.tables(),
                                   .rows = rows},
                           kNoLayer, "embed"});
  for (int32_t layer = 0; layer < config.layers; ++layer)
    Layer(program, buffers, rows, phase, layer);
  return program;
}

void TransformerBuilder::Layer(StepProgram& program, Activations& buffers, int32_t rows,
                               Phase phase, int32_t layer) const {
  const ModelConfig& config = weights_.config();
  const LayerWeights& w = weights_.layers[layer];
  const RowMeta* meta = buffers.meta.data<RowMeta>();
  const KvView kv = kv_.View(layer);
  const DType activation = buffers.activation_dtype;
  const auto linear = [&](const char* label, LinearOp op) {
    op.meta = meta;
    op.rows = rows;
    op.phase = phase;
    op.norm_eps = config.norm_eps;
    op.workspace = buffers.workspace.data();
    op.workspace_bytes = buffers.workspace.bytes();
    program.calls.push_back({op, layer, label});
  };

  linear("qkv", {.x = buffers.x.data(),
                 .x_dtype = DType::kF32,
                 .norm_weight = w.attention_norm,
                 .weight = w.qkv,
                 .bias = w.qkv_bias,
                 .epilogue = Epilogue::kStore,
                 .y = buffers.qkv.data(),
                 .y_dtype = DType::kF32});
  program.calls.push_back({AttentionPrepOp{.meta = meta,
                                           .qkv = buffers.qkv.data<float>(),
                                           .q_norm = w.q_norm,
                                           .k_norm = w.k_norm,
                                           .norm_eps = config.norm_eps,
                                           .cos = weights_.rope_cos,
                                           .sin = weights_.rope_sin,
                                           .rotary_dim = static_cast<int32_t>(config.rotary_dim),
                                           .rotary_interleaved = config.rotary_interleaved,
                                           .q_heads = static_cast<int32_t>(config.q_heads),
                                           .q = buffers.q.data<float>(),
                                           .kv = kv,
                                           .rows = rows},
                           layer, "prep"});
  program.calls.push_back(
      {AttentionOp{.meta = meta,
                   .q = buffers.q.data<float>(),
                   .kv = kv,
                   .q_heads = static_cast<int32_t>(config.q_heads),
                   .scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim)),
                   .window = static_cast<int32_t>(config.sliding_window),
                   .softcap = 0.0f,
                   .out = buffers.attention.data(),
                   .out_dtype = activation,
                   .rows = rows,
                   .phase = phase,
                   .max_total = static_cast<int32_t>(kv_.layout().max_capacity_tokens),
                   .workspace = buffers.workspace.data(),
                   .workspace_bytes = buffers.workspace.bytes()},
       layer, "attention"});
  linear("output", {.x = buffers.attention.data(),
                    .x_dtype = activation,
                    .weight = w.output,
                    .bias = w.output_bias,
                    .epilogue = Epilogue::kResidual,
                    .y = buffers.x.data(),
                    .y_dtype = DType::kF32});
  linear("gate_up", {.x = buffers.x.data(),
                     .x_dtype = DType::kF32,
                     .norm_weight = w.mlp_norm,
                     .weight = w.gate_up,
                     .bias = w.gate_up_bias,
                     .epilogue = Epilogue::kSiluMul,
                     .y = buffers.mlp.data(),
                     .y_dtype = activation});
  linear("down", {.x = buffers.mlp.data(),
                  .x_dtype = activation,
                  .weight = w.down,
                  .bias = w.down_bias,
                  .epilogue = Epilogue::kResidual,
                  .y = buffers.x.data(),
                  .y_dtype = DType::kF32});
}

// The output head always runs in the decode phase: a prefill samples one row, which is a
// matrix-vector product too.
void TransformerBuilder::Head(StepProgram& program, Activations& buffers, int32_t first_row,
                              int32_t rows) const {
  const ModelConfig& config = weights_.config();
  const RowMeta* meta = buffers.meta.data<RowMeta>() + first_row;
  program.calls.push_back({LinearOp{.meta = meta,
                                    .x = buffers.x.data<float>() + first_row * config.hidden,
                                    .x_dtype = DType::kF32,
                                    .norm_weight = weights_.final_norm,
                                    .norm_eps = config.norm_eps,
                                    .weight = weights_.head,
                                    .bias = nullptr,
                                    .epilogue = Epilogue::kStore,
                                    .y = buffers.logits.data(),
                                    .y_dtype = DType::kF32,
                                    .rows = rows,
                                    .phase = Phase::kDecode,
                                    .workspace = buffers.workspace.data(),
                                    .workspace_bytes = buffers.workspace.bytes()},
                           kNoLayer, "head"});
  program.calls.push_back({SampleOp{.meta = meta,
                                    .inputs = buffers.device_rows() + first_row,
                                    .header = buffers.device_header(),
                                    .logits = buffers.logits.data<float>(),
                                    .vocab = static_cast<int32_t>(config.vocab),
                                    .tables = kv_.tables(),
                                    .layers = static_cast<int32_t>(config.layers),
                                    .results = buffers.results.data<RowResult>(),
                                    .rows = rows,
                                    .workspace = buffers.sample_workspace.data(),
                                    .workspace_bytes = buffers.sample_workspace.bytes()},
                           kNoLayer, "sample"});
}

absl::Status TransformerBuilder::AllocateWorkspaces(Activations& buffers, Phase phase) const {
  const StepProgram largest = phase == Phase::kDecode
                                  ? Decode(buffers, buffers.max_rows)
                                  : Prefill(buffers, buffers.max_rows, /*sample=*/true);
  size_t shared = 0, sample = 0;
  for (const OpCall& call : largest.calls) {
    const size_t bytes = device_.ops().workspace_bytes(call);
    size_t& need = std::holds_alternative<SampleOp>(call.params) ? sample : shared;
    need = std::max(need, bytes);
  }
  absl::StatusOr<Buffer> workspace = device_.Allocate(shared, MemoryKind::kDevice, "workspace");
  if (!workspace.ok()) return workspace.status();
  absl::StatusOr<Buffer> sample_workspace =
      device_.Allocate(sample, MemoryKind::kDevice, "workspace");
  if (!sample_workspace.ok()) return sample_workspace.status();
  buffers.workspace = *std::move(workspace);
  buffers.sample_workspace = *std::move(sample_workspace);
  return absl::OkStatus();
}

}  // namespace latchd
