#include <type_traits>

#include "kernels/cpu/simd_targets.h"
#include "kernels/cpu/vectors.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/vectors_simd.cc"
#include "hwy/foreach_target.h"  // must come before highway.h

#include "hwy/highway.h"
#include "kernels/cpu/load-inl.h"

HWY_BEFORE_NAMESPACE();
namespace latchd::cpu {
namespace HWY_NAMESPACE {

// See vectors.h. One tile of kRows x kColumns accumulators.
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

void DotT(DType dtype, const float* x, size_t x_stride, size_t rows, const void* w, size_t w_stride,
          size_t columns, size_t k, float* out, size_t out_stride) {
  const auto dot = [&](const auto* typed) HWY_ATTR {
    DotBlock(x, x_stride, rows, typed, w_stride, columns, k, out, out_stride);
  };
  switch (dtype) {
    case DType::kF32: return dot(static_cast<const float*>(w));
    case DType::kF16: return dot(static_cast<const hwy::float16_t*>(w));
    case DType::kBF16: return dot(static_cast<const hwy::bfloat16_t*>(w));
  }
}

template <class T>
void WidenAs(const T* source, float* HWY_RESTRICT out, size_t count) {
  const DF df;
  const size_t lanes = hn::Lanes(df);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(LoadF32(df, source + i), df, out + i);
  if (i < count) {
    HWY_ALIGN float tail[hn::MaxLanes(DF())];
    hn::Store(LoadTail(df, source + i, count - i), df, tail);
    std::memcpy(out + i, tail, (count - i) * sizeof(float));
  }
}

void WidenT(DType dtype, const void* source, float* out, size_t count) {
  switch (dtype) {
    case DType::kF32: return WidenAs(static_cast<const float*>(source), out, count);
    case DType::kF16: return WidenAs(static_cast<const hwy::float16_t*>(source), out, count);
    case DType::kBF16: return WidenAs(static_cast<const hwy::bfloat16_t*>(source), out, count);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace latchd::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace latchd::cpu {

HWY_EXPORT(DotT);
HWY_EXPORT(WidenT);

void Dot(DType dtype, const float* x, int64_t x_stride, int64_t rows, const void* w,
         int64_t w_stride, int64_t columns, int64_t k, float* out, int64_t out_stride) {
  HWY_DYNAMIC_DISPATCH(DotT)
  (dtype, x, static_cast<size_t>(x_stride), static_cast<size_t>(rows), w,
   static_cast<size_t>(w_stride), static_cast<size_t>(columns), static_cast<size_t>(k), out,
   static_cast<size_t>(out_stride));
}

void Widen(DType dtype, const void* source, float* out, size_t count) {
  HWY_DYNAMIC_DISPATCH(WidenT)(dtype, source, out, count);
}

}  // namespace latchd::cpu
#endif
