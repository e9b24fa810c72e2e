#include <cmath>
#include <limits>

#include "kernels/api/philox.h"
#include "kernels/cpu/sample_internal.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/sample_simd.cc"
#include "hwy/foreach_target.h"  // must come before highway.h

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace latchd::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;
using DU = hn::RebindToUnsigned<DF>;
using VU = hn::Vec<DU>;

// True when any logit is NaN or infinite: 0 * x is 0 for every other x.
bool AnyNonFiniteT(const float* logits, int32_t vocab) {
  const DF df;
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(df));
  const VF zero = hn::Zero(df);
  VF sum = zero;
  int32_t i = 0;
  for (; i + lanes <= vocab; i += lanes) sum = hn::MulAdd(hn::LoadU(df, logits + i), zero, sum);
  bool any = !hn::AllFalse(df, hn::IsNaN(sum));
  for (; i < vocab; ++i) any |= !std::isfinite(logits[i]);
  return any;
}

float MaxLogitT(const float* logits, int32_t vocab) {
  const DF df;
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(df));
  VF max = hn::Set(df, -std::numeric_limits<float>::infinity());
  int32_t i = 0;
  for (; i + lanes <= vocab; i += lanes) max = hn::Max(max, hn::LoadU(df, logits + i));
  float best = hn::GetLane(hn::MaxOfLanes(df, max));
  for (; i < vocab; ++i) best = std::max(best, logits[i]);
  return best;
}

double SumExpT(const float* logits, int32_t vocab, float max, float temperature) {
  const DF df;
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(df));
  const VF shift = hn::Set(df, max);
  const VF divisor = hn::Set(df, temperature);
  // Lanes add up short stretches in f32, the stretches in f64: no digits are lost however large the
  // vocabulary is.
  const int32_t stretch = 64 * lanes;
  double total = 0.0;
  int32_t i = 0;
  while (i + lanes <= vocab) {
    const int32_t stop = std::min(vocab, i + stretch);
    VF sum = hn::Zero(df);
    for (; i + lanes <= stop; i += lanes) {
      const VF v = hn::Div(hn::Sub(hn::LoadU(df, logits + i), shift), divisor);
      sum = hn::Add(sum, hn::Exp(df, v));
    }
    total += hn::GetLane(hn::SumOfLanes(df, sum));
  }
  for (; i < vocab; ++i) total += std::exp((logits[i] - max) / temperature);
  return total;
}

struct Best {
  float score = -std::numeric_limits<float>::infinity();
  int32_t token = std::numeric_limits<int32_t>::max();

  void Offer(float other_score, int32_t other_token) {
    if (other_score > score || (other_score == score && other_token < token)) {
      score = other_score;
      token = other_token;
    }
  }
};

float GumbelScore(const float* logits, int32_t token, float temperature, uint64_t seed,
                  int32_t past) {
  return logits[token] / temperature - std::log(-std::log(TokenUniform(seed, past, token)));
}

#if HWY_TARGET != HWY_SCALAR
HWY_INLINE VU MulHigh(DU du, VU a, VU m) {
  const hn::RepartitionToWide<DU> dw;
  const VU even = hn::BitCast(du, hn::ShiftRight<32>(hn::MulEven(a, m)));
  const VU odd =
      hn::BitCast(du, hn::MulEven(hn::BitCast(du, hn::ShiftRight<32>(hn::BitCast(dw, a))), m));
  return hn::OddEven(odd, even);
}

// First word of Philox(seed, past, token) for a vector of tokens; see philox.h for the plain form.
HWY_INLINE VU PhiloxFirst(DU du, uint64_t seed, int32_t past, VU token) {
  const VU m0 = hn::Set(du, 0xD2511F53u), m1 = hn::Set(du, 0xCD9E8D57u);
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  VU c0 = hn::Set(du, static_cast<uint32_t>(past)), c1 = hn::Zero(du), c2 = token,
     c3 = hn::Zero(du);
  for (int round = 0; round < 10; ++round) {
    const VU n0 = hn::Xor(hn::Xor(MulHigh(du, c2, m1), c1), hn::Set(du, k0));
    const VU n2 = hn::Xor(hn::Xor(MulHigh(du, c0, m0), c3), hn::Set(du, k1));
    c1 = hn::Mul(c2, m1);
    c3 = hn::Mul(c0, m0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c0;
}
#endif

int32_t GumbelArgmaxT(const float* logits, int32_t vocab, float temperature, uint64_t seed,
                      int32_t past) {
  Best best;
  int32_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const DF df;
  const DU du;
  const hn::RebindToSigned<DF> di;
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(df));
  VF scores = hn::Set(df, -std::numeric_limits<float>::infinity());
  VU tokens = hn::Zero(du);
  for (; i + lanes <= vocab; i += lanes) {
    const VU token = hn::Iota(du, static_cast<uint32_t>(i));
    const VU bits = hn::ShiftRight<9>(PhiloxFirst(du, seed, past, token));
    const VF cell = hn::ConvertTo(df, hn::BitCast(di, bits));
    const VF uniform =
        hn::Mul(hn::Add(cell, hn::Set(df, 0.5f)), hn::Set(df, 1.1920928955078125e-7f));
    const VF noise = hn::Log(df, hn::Neg(hn::Log(df, uniform)));
    const VF score = hn::Sub(hn::Div(hn::LoadU(df, logits + i), hn::Set(df, temperature)), noise);
    const auto better = hn::Gt(score, scores);
    scores = hn::IfThenElse(better, score, scores);
    tokens = hn::IfThenElse(hn::RebindMask(du, better), token, tokens);
  }
  if (i > 0) {
    HWY_ALIGN float lane_score[hn::MaxLanes(DF())];
    HWY_ALIGN uint32_t lane_token[hn::MaxLanes(DF())];
    hn::Store(scores, df, lane_score);
    hn::Store(tokens, du, lane_token);
    for (int32_t l = 0; l < lanes; ++l)
      best.Offer(lane_score[l], static_cast<int32_t>(lane_token[l]));
  }
#endif
  for (; i < vocab; ++i) best.Offer(GumbelScore(logits, i, temperature, seed, past), i);
  return best.token;
}

int32_t GumbelArgmaxOfT(const float* logits, const int32_t* ids, int32_t count, float temperature,
                        uint64_t seed, int32_t past) {
  Best best;
  for (int32_t i = 0; i < count; ++i)
    best.Offer(GumbelScore(logits, ids[i], temperature, seed, past), ids[i]);
  return best.token;
}

}  // namespace HWY_NAMESPACE
}  // namespace latchd::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace latchd::cpu {

HWY_EXPORT(AnyNonFiniteT);
HWY_EXPORT(MaxLogitT);
HWY_EXPORT(SumExpT);
HWY_EXPORT(GumbelArgmaxT);
HWY_EXPORT(GumbelArgmaxOfT);

int32_t FirstNonFinite(const float* logits, int32_t vocab) {
  if (!HWY_DYNAMIC_DISPATCH(AnyNonFiniteT)(logits, vocab)) return -1;
  int32_t i = 0;
  while (std::isfinite(logits[i])) ++i;
  return i;
}
float MaxLogit(const float* logits, int32_t vocab) {
  return HWY_DYNAMIC_DISPATCH(MaxLogitT)(logits, vocab);
}
double SumExp(const float* logits, int32_t vocab, float max, float temperature) {
  return HWY_DYNAMIC_DISPATCH(SumExpT)(logits, vocab, max, temperature);
}
int32_t GumbelArgmax(const float* logits, int32_t vocab, float temperature, uint64_t seed,
                     int32_t past) {
  return HWY_DYNAMIC_DISPATCH(GumbelArgmaxT)(logits, vocab, temperature, seed, past);
}
int32_t GumbelArgmaxOf(const float* logits, const int32_t* ids, int32_t count, float temperature,
                       uint64_t seed, int32_t past) {
  return HWY_DYNAMIC_DISPATCH(GumbelArgmaxOfT)(logits, ids, count, temperature, seed, past);
}

}  // namespace latchd::cpu
#endif
