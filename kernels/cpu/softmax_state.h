#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

namespace latchd::cpu {

// Running state of a softmax whose scores arrive in pieces: the largest score so far, and the sum
// of exp(score - max). An accumulator of values weighted by exp(score - max) belongs to it (Milakov
// & Gimelshein 2018; Dao 2022).
struct SoftmaxState {
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0.0f;
};

// What each side's accumulator must be multiplied by before they are added.
struct MergeScales {
  float into;
  float from;
};

// Merges `from` into `into`. The one merge used for key blocks and for splits alike. A side that
// has seen no key yet (sum 0, max -inf) scales by 0; NaN stays NaN, so that a broken score is found
// by the judgement of NON_FINITE.
inline MergeScales Merge(SoftmaxState& into, const SoftmaxState& from) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  const float max = std::max(into.max, from.max);
  const MergeScales scales = {into.max == kNone ? 0.0f : std::exp(into.max - max),
                              from.max == kNone ? 0.0f : std::exp(from.max - max)};
  into.sum = into.sum * scales.into + from.sum * scales.from;
  into.max = max;
  return scales;
}

// What turns the accumulator of a finished state into the attention output: the weights then sum to
// 1, or with a sink to less, as its exp(sink) belongs to no value.
inline float OutputScale(SoftmaxState state, const float* sink) {
  if (sink == nullptr) return 1.0f / state.sum;
  const MergeScales scales = Merge(state, SoftmaxState{*sink, 1.0f});
  return scales.into / state.sum;
}

}  // namespace latchd::cpu
