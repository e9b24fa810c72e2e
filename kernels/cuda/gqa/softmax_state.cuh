#pragma once

#include <cuda_runtime.h>

namespace latchd::cuda {

// Running state of a softmax whose scores arrive in pieces: the largest score so far, and the sum
// of exp(score - max) (Milakov & Gimelshein 2018; Dao 2022). An accumulator of values weighted by
// exp(score - max) belongs to it.
struct SoftmaxState {
  float max;
  float sum;
};

__device__ __forceinline__ SoftmaxState EmptySoftmax() { return {-INFINITY, 0.0f}; }

// exp(max - new_max); 0 for a side that has seen no key yet. NaN scores stay NaN through the sums.
__device__ __forceinline__ float Rescale(float max, float new_max) {
  return max == -INFINITY ? 0.0f : __expf(max - new_max);
}

// What the accumulator of a finished state is divided by: with a sink, its exp(sink) belongs to no
// value.
__device__ __forceinline__ float Denominator(const SoftmaxState& state, const float* sinks,
                                             int q_head) {
  return sinks == nullptr ? state.sum : state.sum + __expf(sinks[q_head] - state.max);
}

struct MergeScales {
  float into;
  float from;
};

// Merges `from` into `into`; returns what each side's accumulator must be multiplied by before they
// are added. The one merge used for lanes, warps and splits.
__device__ __forceinline__ MergeScales Merge(SoftmaxState& into, const SoftmaxState& from) {
  const float max = fmaxf(into.max, from.max);
  const MergeScales scales = {Rescale(into.max, max), Rescale(from.max, max)};
  into.sum = into.sum * scales.into + from.sum * scales.from;
  into.max = max;
  return scales;
}

}  // namespace latchd::cuda
