#pragma once

#include "kernels/api/philox.h"
#include "kernels/api/step_tables.h"
#include "kernels/cuda/common/cluster.cuh"

// Passes over the logits of one row by a cluster, and the selection of the tokens that top_k, top_p
// and min_p keep. The order of tokens is that of the CPU: larger logit first, then lower id.

namespace latchd::cuda {

// A float's bits as an unsigned number of the same order; -0 and 0 are equal.
__device__ __forceinline__ uint32_t OrderedKey(float v) {
  const uint32_t bits = __float_as_uint(v + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

struct alignas(16) Candidate {
  float score;
  int32_t token;
  int32_t unused[2];
};

__device__ __forceinline__ Candidate NoCandidate() { return {-INFINITY, INT32_MAX, {0, 0}}; }
__device__ __forceinline__ Candidate Better(const Candidate& a, const Candidate& b) {
  return b.score > a.score || (b.score == a.score && b.token < a.token) ? b : a;
}

struct alignas(16) LogitStats {
  float max;
  float sum;  // of exp(logit - max)
  int32_t argmax;
  int32_t non_finite;  // lowest id of a NaN or infinite logit, else INT32_MAX
};

__device__ __forceinline__ LogitStats Merge(const LogitStats& a, const LogitStats& b) {
  LogitStats m;
  m.max = fmaxf(a.max, b.max);
  m.sum = a.sum * (a.max == -INFINITY ? 0.0f : __expf(a.max - m.max)) +
          b.sum * (b.max == -INFINITY ? 0.0f : __expf(b.max - m.max));
  m.argmax = a.max == b.max ? min(a.argmax, b.argmax) : a.max > b.max ? a.argmax : b.argmax;
  m.non_finite = min(a.non_finite, b.non_finite);
  return m;
}

// One pass: largest logit, its lowest id, the sum for log softmax, and the judgement of NON_FINITE.
// Logits are read past L1: other blocks of the cluster change them between passes.
__device__ inline LogitStats ReadStats(Cluster& cluster, const float* logits, int32_t vocab) {
  LogitStats s = {-INFINITY, 0.0f, INT32_MAX, INT32_MAX};
#pragma unroll 8
  for (int32_t i = cluster.thread(); i < vocab; i += kClusterThreads) {
    const float v = __ldcg(logits + i);
    if (!isfinite(v)) s.non_finite = min(s.non_finite, i);
    if (v > s.max) {
      s.sum = s.sum * (s.max == -INFINITY ? 0.0f : __expf(s.max - v)) + 1.0f;
      s.max = v;
      s.argmax = i;
    } else {
      s.sum += __expf(v - s.max);
    }
  }
  return cluster.Reduce(s, [](const LogitStats& a, const LogitStats& b) { return Merge(a, b); });
}

// Tokens kept: those with a larger key, and those of the same key up to an id.
struct Cutoff {
  uint32_t key = 0;
  int32_t last_id = INT32_MAX;
  __device__ bool Keeps(uint32_t other_key, int32_t id) const {
    return other_key > key || (other_key == key && id <= last_id);
  }
};

struct Selection {
  uint32_t key;        // at which the sum of weights, from the largest key down, reaches `wanted`
  uint64_t remaining;  // wanted less the weight of larger keys
  uint64_t equal;      // weight of all items with this key
};

// Radix selection, 4 bits a pass: item(i) -> weight and key; items of weight 0 do not count.
// wanted_of(total weight) -> wanted, at least 1.
template <typename Item, typename WantedOf>
__device__ Selection SelectByWeight(Cluster& cluster, int32_t count, Item item,
                                    WantedOf wanted_of) {
  uint32_t prefix = 0;
  uint64_t wanted = 0, equal = 0;
  for (int shift = 28; shift >= 0; shift -= 4) {
    uint64_t bin[kBins] = {};
    for (int32_t i = cluster.thread(); i < count; i += kClusterThreads) {
      uint32_t key;
      const uint64_t weight = item(i, &key);
      if (shift < 28 && (key >> (shift + 4)) != (prefix >> (shift + 4))) continue;
      const uint32_t digit = (key >> shift) & 15u;
#pragma unroll
      for (uint32_t b = 0; b < kBins; ++b) bin[b] += digit == b ? weight : 0;
    }
    cluster.SumBins(bin);
    const uint64_t* totals = cluster.scratch().bins;
    if (shift == 28) {
      uint64_t total = 0;
      for (int b = 0; b < kBins; ++b) total += totals[b];
      wanted = wanted_of(total);
      if (wanted > total) wanted = total;
    }
    int digit = kBins - 1;
    while (digit > 0 && totals[digit] < wanted) wanted -= totals[digit--];
    prefix |= static_cast<uint32_t>(digit) << shift;
    equal = totals[digit];
    __syncthreads();  // totals are read; the next pass overwrites them
  }
  return {prefix, wanted, equal};
}

// Weight of a token relative to the most probable one, as a fixed-point number: integer sums have
// no order.
__device__ __forceinline__ uint64_t FixedWeight(float logit, float max, float temperature) {
  return __float2ull_rn(expf((logit - max) / temperature) * 1099511627776.0f);  // 2^40
}

// The first `wanted` items of equal key by id.
__device__ inline int32_t CutTies(Cluster& cluster, const float* logits, int32_t vocab,
                                  uint32_t tie_key, uint64_t wanted) {
  const Selection s = SelectByWeight(
      cluster, vocab,
      [&](int32_t i, uint32_t* key) -> uint64_t {
        *key = ~static_cast<uint32_t>(i);
        return OrderedKey(__ldcg(logits + i)) == tie_key ? 1 : 0;
      },
      [&](uint64_t) { return wanted; });
  return static_cast<int32_t>(~s.key);
}

__device__ inline Cutoff SelectTopK(Cluster& cluster, const float* logits, int32_t vocab,
                                    int32_t top_k) {
  const Selection s = SelectByWeight(
      cluster, vocab,
      [&](int32_t i, uint32_t* key) -> uint64_t {
        *key = OrderedKey(__ldcg(logits + i));
        return 1;
      },
      [&](uint64_t) { return static_cast<uint64_t>(top_k); });
  Cutoff cutoff = {s.key, INT32_MAX};
  if (s.remaining < s.equal) cutoff.last_id = CutTies(cluster, logits, vocab, s.key, s.remaining);
  return cutoff;
}

__device__ inline Cutoff SelectTopP(Cluster& cluster, const float* logits, int32_t vocab,
                                    const Cutoff& kept, float max, float temperature, float top_p) {
  const Selection s = SelectByWeight(
      cluster, vocab,
      [&](int32_t i, uint32_t* key) -> uint64_t {
        const float v = __ldcg(logits + i);
        *key = OrderedKey(v);
        return kept.Keeps(*key, i) ? FixedWeight(v, max, temperature) : 0;
      },
      [&](uint64_t total) {
        const double wanted = ceil(static_cast<double>(total) * static_cast<double>(top_p));
        return wanted < 1.0 ? uint64_t{1} : static_cast<uint64_t>(wanted);
      });
  Cutoff cutoff = {s.key, s.key == kept.key ? kept.last_id : INT32_MAX};
  if (s.remaining >= s.equal) return cutoff;
  // Equal logits have equal weights; take as many as reach the mass.
  const float logit = __uint_as_float((s.key & 0x80000000u) != 0 ? s.key & 0x7fffffffu : ~s.key);
  const uint64_t each = FixedWeight(logit, max, temperature);
  if (each > 0 && s.equal > each) {
    cutoff.last_id = min(cutoff.last_id,
                         CutTies(cluster, logits, vocab, s.key, (s.remaining + each - 1) / each));
  }
  return cutoff;
}

// The kept token with the largest logit / temperature + Gumbel noise: an exact draw from the
// softmax over the kept tokens. The noise of a token depends on (seed, past, token) alone.
__device__ inline int32_t DrawToken(Cluster& cluster, const float* logits, int32_t vocab,
                                    const Cutoff& kept, float max, const SlotSampling& s,
                                    int32_t past) {
  Candidate best = NoCandidate();
  for (int32_t i = cluster.thread(); i < vocab; i += kClusterThreads) {
    const float v = __ldcg(logits + i);
    if (!kept.Keeps(OrderedKey(v), i)) continue;
    if (s.min_p > 0.0f && expf((v - max) / s.temperature) < s.min_p) continue;
    const float noise = logf(-logf(TokenUniform(s.seed, past, i)));
    best = Better(best, {v / s.temperature - noise, i, {0, 0}});
  }
  return cluster.Reduce(best, [](const Candidate& a, const Candidate& b) { return Better(a, b); })
      .token;
}

// The best token after `previous` in the order of tokens.
__device__ inline Candidate NextBest(Cluster& cluster, const float* logits, int32_t vocab,
                                     const Candidate& previous) {
  Candidate best = NoCandidate();
  for (int32_t i = cluster.thread(); i < vocab; i += kClusterThreads) {
    const float v = __ldcg(logits + i);
    if (v < previous.score || (v == previous.score && i > previous.token))
      best = Better(best, {v, i, {0, 0}});
  }
  return cluster.Reduce(best, [](const Candidate& a, const Candidate& b) { return Better(a, b); });
}

}  // namespace latchd::cuda
