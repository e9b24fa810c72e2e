#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>

#include "kernels/api/dtype.h"
#include "kernels/api/kv_view.h"
#include "kernels/api/step_tables.h"

// Parameters of every op: plain data with bound addresses, so a list of them is a program that can
// be recorded, printed and replayed. All pointers are device pointers unless named host_*. A null
// pointer marks an absent input. Every op takes `rows` and skips rows whose RowMeta says so
// (meta[r].slot < 0); a row's arithmetic never depends on the other rows or on how many there are
// (decode phase), bit for bit.

namespace latchd {

// Which implementation family an op uses. kDecode: rows are independent single tokens, capturable,
// no allocation, no library call. kPrefill: rows are consecutive tokens of one slot; may use matrix
// libraries; never captured.
enum class Phase : uint8_t { kDecode, kPrefill };

// A weight matrix in the layout its backend streams. CPU: row-major. CUDA f16/bf16: mma A-fragment
// tiles, made by PackOp. Logical shape [n, k] (n outputs).
struct WeightView {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t n = 0;
  int64_t k = 0;
};

// Copies rows [row_begin, row_begin + rows) of a row-major [n, k] matrix into its packed place.
struct PackOp {
  const void* source;  // [rows, k] of dtype, row-major
  void* destination;   // OpTable::packed_bytes(dtype, n, k) bytes
  DType dtype;
  int64_t n, k;
  int64_t row_begin;  // multiple of 16
  int64_t rows;       // multiple of 16, unless the range ends at n
};

// Uploads the step inputs: the first node of each graph.
struct UploadOp {
  const void* host_source;  // pinned
  void* destination;
  size_t bytes;
};

// Resolves and judges each row; sets latches. `meta` is complete for all `rows` afterwards.
struct MetadataOp {
  const StepRow* inputs;  // [rows]
  RowMeta* meta;          // [rows]
  SlotTables tables;
  int32_t rows;
  int32_t rotary_rows;  // rows of the rotary cache
  int32_t vocab;        // 0: tokens are not judged
};

// out[r] = table[token] * scale; writes the token into the slot's history.
struct EmbedOp {
  const RowMeta* meta;
  WeightView table;  // [vocab, hidden], packed
  float* out;        // [rows, hidden]
  SlotTables tables;
  int32_t rows;
};

enum class Epilogue : uint8_t {
  kStore,     // y = Wx + bias
  kResidual,  // y += Wx + bias
  kSiluMul,   // W's rows interleave gate and up by 8 (gate 0-7, up 0-7, gate 8-15, ...); y =
              // silu(gate) * up, n/2 wide
};

// y = epilogue(W · norm(x) + bias). With norm_weight, x is first RMS-normalised:
// x * rsqrt(mean(x^2) + norm_eps) * norm_weight (Zhang & Sennrich 2019).
struct LinearOp {
  const RowMeta* meta;
  const void* x;             // [rows, k] of x_dtype
  DType x_dtype;             // f32, or the activation dtype of the backend
  const float* norm_weight;  // [k] or null
  float norm_eps;
  WeightView weight;  // [n, k]
  const float* bias;  // [n] or null
  Epilogue epilogue;
  void* y;  // [rows, n] (kSiluMul: [rows, n/2]) of y_dtype; kResidual: f32
  DType y_dtype;
  int32_t rows;
  Phase phase;
  void* workspace;
  size_t workspace_bytes;
};

// AttentionPrepOp::parts
inline constexpr uint32_t kPrepQuery = 1;
inline constexpr uint32_t kPrepKey = 2;
inline constexpr uint32_t kPrepValue = 4;
inline constexpr uint32_t kPrepAll = kPrepQuery | kPrepKey | kPrepValue;

// Per row: splits qkv, normalises heads of q and k where weights are given (Qwen3), rotates q and k
// (RoPE, Su et al. 2021), writes q and appends k/v to the cache at meta.past.
struct AttentionPrepOp {
  const RowMeta* meta;
  const float* qkv;     // [rows, (q_heads + 2 kv_heads) * head_dim]
  const float* q_norm;  // [head_dim] or null
  const float* k_norm;  // [head_dim] or null
  float norm_eps;
  const float* cos;  // [rotary_rows, rotary_dim / 2] or null: no rotation
  const float* sin;
  int32_t rotary_dim;       // even, 2..head_dim; the rest passes through
  bool rotary_interleaved;  // pairs (2i, 2i+1) instead of (i, i + rotary_dim/2)
  int32_t q_heads;
  float* q;   // [rows, q_heads, head_dim]
  KvView kv;  // this layer's
  int32_t rows;
  uint32_t parts = kPrepAll;  // in one launch or in several: the same bits
};

// Causal grouped-query attention of each row's query over its slot's KV [0, meta.total).
// score = softcap(scale * q.k) + bias; window w > 0 keeps the last w keys, the row's own included.
// A head sink adds exp(sink) to the softmax denominator (Agarwal et al. 2025, gpt-oss); ONNX's
// smooth_softmax is a sink of 0 for every head.
struct AttentionOp {
  const RowMeta* meta;
  const float* q;  // [rows, q_heads, head_dim]
  KvView kv;
  int32_t q_heads;
  float scale;
  int32_t window;                    // -1: off
  float softcap;                     // 0: off
  const float* head_sink = nullptr;  // [q_heads] or null
  const float* bias = nullptr;       // null, or added to score[row, head, key] at
                                     // bias[row * bias_row_stride + head * bias_head_stride + key]
  int64_t bias_row_stride = 0;       // elements; 0: the same for every row
  int64_t bias_head_stride = 0;      // elements; 0: the same for every head
  void* out;                         // [rows, q_heads * head_dim] of out_dtype
  DType out_dtype;
  int32_t rows;
  Phase phase;
  int32_t max_total;  // host bound on total, for grid and workspace size (the capacity of the
                      // largest session)
  void* workspace;
  size_t workspace_bytes;
};

// Per sampled row: bias, penalties, judgement of NON_FINITE, sampling, log probabilities; writes
// next_token of the slot and the row's result. Every row gets a result record, skipped rows with
// token -1 and their slot's latch.
struct SampleOp {
  const RowMeta* meta;             // [rows]
  const StepRow* inputs;           // [rows]: the slot of a skipped row, for its latch
  const StepInputsHeader* header;  // sequence to publish
  float* logits;                   // [rows, vocab]; modified by bias and penalties
  int32_t vocab;
  SlotTables tables;
  int32_t layers;      // latch.layer for NON_FINITE
  RowResult* results;  // [rows], host-visible
  int32_t rows;
  void* workspace;  // zero-filled once; the op leaves it zero-filled
  size_t workspace_bytes;
};

using OpParams = std::variant<PackOp, UploadOp, MetadataOp, EmbedOp, LinearOp, AttentionPrepOp,
                              AttentionOp, SampleOp>;

struct OpCall {
  OpParams params;
  int32_t layer = -1;      // -1: not inside a layer
  const char* label = "";  // e.g. "qkv"; a string literal
};

}  // namespace latchd
