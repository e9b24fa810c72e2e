#include "kernels/cpu/attention_internal.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/cpu/vectors.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_simd.cc"
#include "hwy/foreach_target.h"  // must come before highway.h

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "kernels/cpu/load-inl.h"

HWY_BEFORE_NAMESPACE();
namespace latchd::cpu {
namespace HWY_NAMESPACE {

// Highway's functions turn NaN into a number, which would hide a broken cache from the judgement of
// NON_FINITE.
HWY_INLINE VF ExpKeepNan(DF df, VF x) { return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(df, x)); }
HWY_INLINE VF TanhKeepNan(DF df, VF x) { return hn::IfThenElse(hn::IsNaN(x), x, hn::Tanh(df, x)); }

// Calls step(i, count) over [0, size), `count` being the vector length, or less for the last.
template <class Step>
HWY_INLINE void ForVectors(int32_t size, const Step& step) {
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(DF()));
  int32_t i = 0;
  for (; i + lanes <= size; i += lanes) step(i, lanes);
  if (i < size) step(i, size - i);
}

HWY_INLINE VF LoadPart(DF df, const float* p, int32_t count) {
  return count == static_cast<int32_t>(hn::Lanes(df)) ? hn::LoadU(df, p)
                                                      : LoadTail(df, p, static_cast<size_t>(count));
}
HWY_INLINE void StorePart(VF v, DF df, float* p, int32_t count) {
  if (count == static_cast<int32_t>(hn::Lanes(df))) return hn::StoreU(v, df, p);
  HWY_ALIGN float padded[hn::MaxLanes(DF())];
  hn::Store(v, df, padded);
  std::memcpy(p, padded, static_cast<size_t>(count) * sizeof(float));
}

void ScaleScoresT(float* scores, int32_t count, float scale, float softcap, const float* bias) {
  const DF df;
  const VF factor = hn::Set(df, scale);
  const VF cap = hn::Set(df, softcap);
  ForVectors(count, [&](int32_t i, int32_t part) HWY_ATTR {
    VF v = hn::Mul(LoadPart(df, scores + i, part), factor);
    if (softcap > 0.0f) v = hn::Mul(cap, TanhKeepNan(df, hn::Div(v, cap)));
    if (bias != nullptr) v = hn::Add(v, LoadPart(df, bias + i, part));
    StorePart(v, df, scores + i, part);
  });
}

float SoftmaxBlockT(float* scores, int32_t count, SoftmaxState& state) {
  const DF df;
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(df));
  const int32_t whole = count / lanes * lanes;
  VF max = hn::Set(df, state.max);
  for (int32_t i = 0; i < whole; i += lanes) max = hn::Max(max, hn::LoadU(df, scores + i));
  SoftmaxState block;
  block.max = hn::GetLane(hn::MaxOfLanes(df, max));
  for (int32_t i = whole; i < count; ++i) block.max = std::max(block.max, scores[i]);
  if (block.max == kNone) {  // nothing visible yet
    ForVectors(count, [&](int32_t i, int32_t part)
                          HWY_ATTR { StorePart(hn::Zero(df), df, scores + i, part); });
    return 1.0f;
  }
  const VF shift = hn::Set(df, block.max);
  VF sum = hn::Zero(df);
  ForVectors(count, [&](int32_t i, int32_t part) HWY_ATTR {
    // Elements past the end weigh nothing in the sum: they are stored to the padding and read back
    // as zero.
    const VF p = ExpKeepNan(df, hn::Sub(LoadPart(df, scores + i, part), shift));
    StorePart(p, df, scores + i, part);
    sum = hn::Add(sum, LoadPart(df, scores + i, part));
  });
  block.sum = Sum(df, sum);
  // The block's weights are already relative to the new maximum, so its own scale is 1.
  return Merge(state, block).into;
}

void ScaleVectorT(float* acc, int32_t count, float scale) {
  const DF df;
  const VF factor = hn::Set(df, scale);
  ForVectors(count, [&](int32_t i, int32_t part) HWY_ATTR {
    StorePart(hn::Mul(LoadPart(df, acc + i, part), factor), df, acc + i, part);
  });
}

void MergeVectorT(float* into, float into_scale, const float* from, float from_scale,
                  int32_t count) {
  const DF df;
  const VF a = hn::Set(df, into_scale);
  const VF b = hn::Set(df, from_scale);
  ForVectors(count, [&](int32_t i, int32_t part) HWY_ATTR {
    const VF scaled = hn::Mul(LoadPart(df, into + i, part), a);
    StorePart(hn::MulAdd(LoadPart(df, from + i, part), b, scaled), df, into + i, part);
  });
}

// acc[h] [head_dim] += sum over t of weights[h * kDecodeKeys + t] * value row t, for kHeads heads
// and kVectors vectors of the head dimension from `at`; a value is loaded and converted once for
// all heads. Adds in the order of t.
template <int kHeads, int kVectors, class T>
HWY_INLINE void AddValuesTile(const float* HWY_RESTRICT weights, const T* HWY_RESTRICT values,
                              int32_t count, int32_t head_dim, int32_t at, float* const* acc) {
  const DF df;
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(df));
  VF sums[kHeads][kVectors];
  for (int h = 0; h < kHeads; ++h) {
    for (int v = 0; v < kVectors; ++v) sums[h][v] = hn::LoadU(df, acc[h] + at + v * lanes);
  }
  for (int32_t t = 0; t < count; ++t) {
    const T* row = values + static_cast<size_t>(t) * head_dim + at;
    VF value[kVectors];
    for (int v = 0; v < kVectors; ++v) value[v] = LoadF32(df, row + v * lanes);
    for (int h = 0; h < kHeads; ++h) {
      const VF weight = hn::Set(df, weights[h * kDecodeKeys + t]);
      for (int v = 0; v < kVectors; ++v) sums[h][v] = hn::MulAdd(weight, value[v], sums[h][v]);
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sums[h][v], df, acc[h] + at + v * lanes);
  }
}

template <int kHeads, class T>
HWY_INLINE void AddValues(const float* weights, const T* values, int32_t count, int32_t head_dim,
                          float* const* acc) {
  const DF df;
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(df));
  int32_t at = 0;
  for (; at + 4 * lanes <= head_dim; at += 4 * lanes) {
    AddValuesTile<kHeads, 4>(weights, values, count, head_dim, at, acc);
  }
  for (; at + lanes <= head_dim; at += lanes) {
    AddValuesTile<kHeads, 1>(weights, values, count, head_dim, at, acc);
  }
  if (lanes == 1 || at == head_dim) return;
  const int32_t rest = head_dim - at;
  for (int h = 0; h < kHeads; ++h) {
    VF sum = LoadPart(df, acc[h] + at, rest);
    for (int32_t t = 0; t < count; ++t) {
      const VF value =
          LoadTail(df, values + static_cast<size_t>(t) * head_dim + at, static_cast<size_t>(rest));
      sum = hn::MulAdd(hn::Set(df, weights[h * kDecodeKeys + t]), value, sum);
    }
    StorePart(sum, df, acc[h] + at, rest);
  }
}

// Calls run(first, count) for each stretch of [begin, end) that is contiguous in memory.
template <class Run>
HWY_INLINE void ForPageRuns(const KvView& kv, int32_t begin, int32_t end, const Run& run) {
  const int64_t page_size = int64_t{1} << kv.page_shift;
  while (begin < end) {
    const int64_t page_end = ((begin >> kv.page_shift) + 1) * page_size;
    const int32_t stop = static_cast<int32_t>(std::min<int64_t>(end, page_end));
    run(begin, stop - begin);
    begin = stop;
  }
}

template <class T>
void AttendSplitAs(const AttentionOp& op, int64_t row, int32_t kv_head, int32_t begin, int32_t end,
                   Partial* partials) {
  constexpr int32_t kHeadsAtOnce = 4;
  const KvView& kv = op.kv;
  const int32_t slot = op.meta[row].slot;
  const int32_t group = op.q_heads / kv.kv_heads;
  const size_t head_dim = static_cast<size_t>(kv.head_dim);
  const float* q =
      op.q +
      (static_cast<size_t>(row) * op.q_heads + static_cast<size_t>(kv_head) * group) * head_dim;
  for (int32_t h = 0; h < group; ++h) {
    partials[h].state = SoftmaxState();
    std::fill_n(partials[h].acc, head_dim, 0.0f);
  }
  HWY_ALIGN float scores[kHeadsAtOnce * kDecodeKeys] = {};
  for (int32_t block = begin; block < end; block += kDecodeKeys) {
    const int32_t block_end = std::min(end, block + kDecodeKeys);
    const int32_t count = block_end - block;
    for (int32_t h = 0; h < group; h += kHeadsAtOnce) {
      const int32_t heads = std::min(kHeadsAtOnce, group - h);
      float* acc[kHeadsAtOnce];
      ForPageRuns(kv, block, block_end, [&](int32_t first, int32_t length) HWY_ATTR {
        const T* keys = static_cast<const T*>(kv.key) + kv.Offset(slot, kv_head, first);
        Dot(kv.dtype, q + h * head_dim, kv.head_dim, heads, keys, kv.head_dim, length, kv.head_dim,
            scores + (first - block), kDecodeKeys);
      });
      for (int32_t i = 0; i < heads; ++i) {
        float* own = scores + i * kDecodeKeys;
        ScaleScoresT(own, count, op.scale, op.softcap,
                     BiasAt(op, row, kv_head * group + h + i, block));
        acc[i] = partials[h + i].acc;
        ScaleVectorT(acc[i], kv.head_dim, SoftmaxBlockT(own, count, partials[h + i].state));
      }
      ForPageRuns(kv, block, block_end, [&](int32_t first, int32_t length) HWY_ATTR {
        const T* values = static_cast<const T*>(kv.value) + kv.Offset(slot, kv_head, first);
        const float* weights = scores + (first - block);
        switch (heads) {
          case 1: return AddValues<1>(weights, values, length, kv.head_dim, acc);
          case 2: return AddValues<2>(weights, values, length, kv.head_dim, acc);
          case 3: return AddValues<3>(weights, values, length, kv.head_dim, acc);
          default: return AddValues<4>(weights, values, length, kv.head_dim, acc);
        }
      });
    }
  }
}

void AttendSplitT(const AttentionOp& op, int64_t row, int32_t kv_head, int32_t begin, int32_t end,
                  Partial* partials) {
  switch (op.kv.dtype) {
    case DType::kF32: return AttendSplitAs<float>(op, row, kv_head, begin, end, partials);
    case DType::kF16: return AttendSplitAs<hwy::float16_t>(op, row, kv_head, begin, end, partials);
    case DType::kBF16:
      return AttendSplitAs<hwy::bfloat16_t>(op, row, kv_head, begin, end, partials);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace latchd::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace latchd::cpu {

HWY_EXPORT(AttendSplitT);
HWY_EXPORT(ScaleScoresT);
HWY_EXPORT(SoftmaxBlockT);
HWY_EXPORT(ScaleVectorT);
HWY_EXPORT(MergeVectorT);

void AttendSplit(const AttentionOp& op, int64_t row, int32_t kv_head, int32_t begin, int32_t end,
                 Partial* partials) {
  HWY_DYNAMIC_DISPATCH(AttendSplitT)(op, row, kv_head, begin, end, partials);
}
void ScaleScores(float* scores, int32_t count, float scale, float softcap, const float* bias) {
  HWY_DYNAMIC_DISPATCH(ScaleScoresT)(scores, count, scale, softcap, bias);
}
float SoftmaxBlock(float* scores, int32_t count, SoftmaxState& state) {
  return HWY_DYNAMIC_DISPATCH(SoftmaxBlockT)(scores, count, state);
}
void ScaleVector(float* acc, int32_t count, float scale) {
  HWY_DYNAMIC_DISPATCH(ScaleVectorT)(acc, count, scale);
}
void MergeVector(float* into, float into_scale, const float* from, float from_scale,
                 int32_t count) {
  HWY_DYNAMIC_DISPATCH(MergeVectorT)(into, into_scale, from, from_scale, count);
}

}  // namespace latchd::cpu
#endif
