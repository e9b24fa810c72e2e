// Per-target include guard: foreach_target.h includes this once for each instruction set.
#if defined(LATCHD_KERNELS_CPU_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LATCHD_KERNELS_CPU_DOT_INL_H_
#undef LATCHD_KERNELS_CPU_DOT_INL_H_
#else
#define LATCHD_KERNELS_CPU_DOT_INL_H_
#endif

#include <cmath>
#include <cstring>
#include <type_traits>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace latchd::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;

HWY_INLINE VF LoadF32(DF df, const float* p) { return hn::LoadU(df, p); }
HWY_INLINE VF LoadF32(DF df, const hwy::float16_t* p) {
  return hn::PromoteTo(df, hn::LoadU(hn::Rebind<hwy::float16_t, DF>(), p));
}
HWY_INLINE VF LoadF32(DF df, const hwy::bfloat16_t* p) {
  return hn::PromoteTo(df, hn::LoadU(hn::Rebind<hwy::bfloat16_t, DF>(), p));
}

// The first `count` < Lanes elements, zeros after them. Goes through a buffer, so that nothing past
// them is read.
template <class T>
HWY_INLINE VF LoadTail(DF df, const T* p, size_t count) {
  HWY_ALIGN T padded[hn::MaxLanes(DF())] = {};
  std::memcpy(padded, p, count * sizeof(T));
  return LoadF32(df, padded);
}

HWY_INLINE float Sum(DF df, VF v) { return hn::GetLane(hn::SumOfLanes(df, v)); }

// out[r * out_stride + j] = dot(x row r, w row j) over k elements, for kRows x kColumns pairs at
// once: a weight is loaded and converted once for all rows. Each pair has its own accumulator and
// adds in the order of k, so its result does not depend on kRows or kColumns, bit for bit. x is
// f32, w any type.
template <int kRows, int kColumns, class T>
HWY_INLINE void DotTile(const float* HWY_RESTRICT x, size_t x_stride, const T* HWY_RESTRICT w,
                        size_t w_stride, size_t k, float* HWY_RESTRICT out, size_t out_stride) {
  const DF df;
  const size_t lanes = hn::Lanes(df);
  VF sums[kRows][kColumns];
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kColumns; ++j) sums[r][j] = hn::Zero(df);
  }
  size_t i = 0;
  for (; i + lanes <= k; i += lanes) {
    for (int j = 0; j < kColumns; ++j) {
      const VF wv = LoadF32(df, w + j * w_stride + i);
      for (int r = 0; r < kRows; ++r) {
        sums[r][j] = hn::MulAdd(hn::LoadU(df, x + r * x_stride + i), wv, sums[r][j]);
      }
    }
  }
  if (i < k) {
    for (int j = 0; j < kColumns; ++j) {
      const VF wv = LoadTail(df, w + j * w_stride + i, k - i);
      for (int r = 0; r < kRows; ++r) {
        sums[r][j] = hn::MulAdd(LoadTail(df, x + r * x_stride + i, k - i), wv, sums[r][j]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kColumns; ++j) out[r * out_stride + j] = Sum(df, sums[r][j]);
  }
}

template <int kRows, class T>
HWY_INLINE void DotColumns(const float* x, size_t x_stride, const T* w, size_t w_stride,
                           size_t columns, size_t k, float* out, size_t out_stride) {
  // Enough independent sums to hide the latency of an FMA, few enough to stay in registers.
  constexpr int kColumns = kRows >= 8 ? 2 : 4;
  size_t j = 0;
  for (; j + kColumns <= columns; j += kColumns) {
    DotTile<kRows, kColumns>(x, x_stride, w + j * w_stride, w_stride, k, out + j, out_stride);
  }
  for (; j < columns; ++j) {
    DotTile<kRows, 1>(x, x_stride, w + j * w_stride, w_stride, k, out + j, out_stride);
  }
}

// The same for any numbers of rows and columns. Keep `columns` small enough that their weights stay
// in the L1 cache while groups of rows go over them.
template <class T>
HWY_NOINLINE void DotBlock(const float* x, size_t x_stride, size_t rows, const T* w,
                           size_t w_stride, size_t columns, size_t k, float* out,
                           size_t out_stride) {
  size_t r = 0;
  const auto group = [&](auto size) HWY_ATTR {
    constexpr int kRows = decltype(size)::value;
    for (; r + kRows <= rows; r += kRows) {
      DotColumns<kRows>(x + r * x_stride, x_stride, w, w_stride, columns, k, out + r * out_stride,
                        out_stride);
    }
  };
  group(std::integral_constant<int, 8>());
  group(std::integral_constant<int, 4>());
  group(std::integral_constant<int, 2>());
  group(std::integral_constant<int, 1>());
}

}  // namespace HWY_NAMESPACE
}  // namespace latchd::cpu
HWY_AFTER_NAMESPACE();

#endif
