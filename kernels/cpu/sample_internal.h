#pragma once

#include <cstdint>

#include "kernels/api/step_tables.h"

namespace latchd::cpu {

// Passes over the logits of one row, [vocab] f32. SIMD; each adds up in an order fixed by `vocab`
// alone.

// Index of the first NaN or infinity, or -1.
int32_t FirstNonFinite(const float* logits, int32_t vocab);
float MaxLogit(const float* logits, int32_t vocab);
// Sum of exp((logit - max) / temperature).
double SumExp(const float* logits, int32_t vocab, float max, float temperature);
// The token with the largest logit / temperature + Gumbel noise (the Gumbel-max trick: an exact
// draw from the softmax). Noise of a token: TokenUniform(seed, past, token). Ties go to the lowest
// id.
int32_t GumbelArgmax(const float* logits, int32_t vocab, float temperature, uint64_t seed,
                     int32_t past);
// The same over the tokens ids [count].
int32_t GumbelArgmaxOf(const float* logits, const int32_t* ids, int32_t count, float temperature,
                       uint64_t seed, int32_t past);

inline bool HasFilters(const SlotSampling& s, int32_t vocab) {
  return (s.top_k > 0 && s.top_k < vocab) || s.top_p < 1.0f || s.min_p > 0.0f;
}

// Applies top_k, then top_p, then min_p. Writes the kept tokens to ids [vocab] and returns how many
// they are: at least one. REQUIRES: temperature > 0.
//   top_k: exactly the k largest logits, ties to the lowest id.
//   top_p: the smallest set of the most probable tokens left whose probability reaches top_p.
//   min_p: tokens whose probability is at least min_p times that of the most probable one.
int32_t FilterTokens(const float* logits, int32_t vocab, const SlotSampling& sampling, float max,
                     int32_t* ids);

}  // namespace latchd::cpu
