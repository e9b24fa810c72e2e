#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/api/ops.h"
#include "kernels/cpu/softmax_state.h"

namespace latchd::cpu {

// Keys whose scores are taken at once. Part of the arithmetic: the softmax runs block by block.
inline constexpr int32_t kDecodeKeys = 64;
inline constexpr int32_t kPrefillKeys = 128;
inline constexpr int32_t kMaxSplits = 32;

// First key that a query with `total` valid keys sees.
inline int32_t FirstKey(const AttentionOp& op, int32_t total) {
  return op.window > 0 ? std::max(0, total - op.window) : 0;
}

// How a row's keys are cut for decode: from the row's own length alone, so that neither the batch
// nor the number of threads changes the order in which they are added up.
struct SplitPlan {
  int32_t first;   // key at which split 0 begins
  int32_t tokens;  // per split; the last may have fewer
  int32_t splits;
};
inline SplitPlan PlanSplits(int32_t first, int32_t total) {
  const int32_t length = total - first;
  const int32_t even = (length + kMaxSplits - 1) / kMaxSplits;
  const int32_t tokens =
      std::max(kDecodeKeys, (even + kDecodeKeys - 1) / kDecodeKeys * kDecodeKeys);
  return {first, tokens, (length + tokens - 1) / tokens};
}

// The most splits of any length up to max_total. Not PlanSplits(0, max_total).splits: where splits
// begin to grow longer, a longer row has fewer of them.
inline int32_t MaxSplitsFor(int32_t max_total) {
  return std::clamp((max_total + kDecodeKeys - 1) / kDecodeKeys, 1, kMaxSplits);
}

// Result of one split for one query head: `acc` [head_dim] is the sum of exp(score - state.max) *
// value.
struct Partial {
  SoftmaxState state;
  float* acc;
};

// Attends the query heads of `kv_head` of row `row` to keys [begin, end). Fills partials[0 .. group
// size).
void AttendSplit(const AttentionOp& op, int64_t row, int32_t kv_head, int32_t begin, int32_t end,
                 Partial* partials);

// Bias of the scores of one query head against keys [key, ...), or null.
inline const float* BiasAt(const AttentionOp& op, int64_t row, int32_t q_head, int32_t key) {
  if (op.bias == nullptr) return nullptr;
  return op.bias + row * op.bias_row_stride + q_head * op.bias_head_stride + key;
}
// The sink of one query head, or null.
inline const float* SinkOf(const AttentionOp& op, int32_t q_head) {
  return op.head_sink == nullptr ? nullptr : op.head_sink + q_head;
}

// scores [count] = softcap(scale * scores) + bias; softcap 0 and bias null: off.
void ScaleScores(float* scores, int32_t count, float scale, float softcap, const float* bias);
// scores [count] becomes exp(score - max) under the state after them; masked scores are -inf.
// Returns what an accumulator that belongs to the state must be multiplied by.
float SoftmaxBlock(float* scores, int32_t count, SoftmaxState& state);
// acc [count] = acc * scale
void ScaleVector(float* acc, int32_t count, float scale);
// into [count] = into * into_scale + from * from_scale
void MergeVector(float* into, float into_scale, const float* from, float from_scale, int32_t count);

// Flash attention of all rows, tile by tile; `scratch` holds PrefillTileFloats(op) floats for each
// thread.
void AttentionPrefill(const AttentionOp& op, float* scratch, int threads);
int64_t PrefillTileFloats(const AttentionOp& op);

}  // namespace latchd::cpu
