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

// out[r * out_stride + j] = dot(x row r, w row j) for kRows x kColumns pairs. Each pair has two
// accumulators, which hide most of an FMA's latency; other pairs, or the next weight rows that a
// CPU starts early, hide the rest.
template <int kRows, int kColumns, class T>
HWY_INLINE void DotTile(const float* HWY_RESTRICT x, size_t x_stride, const T* HWY_RESTRICT w,
                        size_t w_stride, size_t k, float* HWY_RESTRICT out, size_t out_stride) {
  const DF df;
  const size_t lanes = hn::Lanes(df);
  VF even[kRows][kColumns], odd[kRows][kColumns];
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kColumns; ++j) even[r][j] = odd[r][j] = hn::Zero(df);
  }
  const auto add = [&](VF(&sums)[kRows][kColumns], size_t i, auto load) HWY_ATTR {
    VF weights[kColumns];
    for (int j = 0; j < kColumns; ++j) weights[j] = load(w + j * w_stride + i);
    for (int r = 0; r < kRows; ++r) {
      const VF v = load(x + r * x_stride + i);
      for (int j = 0; j < kColumns; ++j) sums[r][j] = hn::MulAdd(v, weights[j], sums[r][j]);
    }
  };
  const auto whole = [&](const auto* p) HWY_ATTR { return LoadF32(df, p); };
  size_t i = 0;
  for (; i + 2 * lanes <= k; i += 2 * lanes) {
    add(even, i, whole);
    add(odd, i + lanes, whole);
  }
  if (i + lanes <= k) {
    add(even, i, whole);
    i += lanes;
  }
  if (i < k) add(odd, i, [&](const auto* p) HWY_ATTR { return LoadTail(df, p, k - i); });
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kColumns; ++j)
      out[r * out_stride + j] = Sum(df, hn::Add(even[r][j], odd[r][j]));
  }
}

// One or two rows wait for memory: they read weight rows one after the other, because several at
// once (tried: 4) are several streams inside one page, which the hardware prefetchers do not
// follow, and took three times as long. Four rows are bound by arithmetic: two weight rows share
// each load of x.
template <class T>
HWY_INLINE void DotBlock(const float* x, size_t x_stride, size_t rows, const T* w, size_t w_stride,
                         size_t columns, size_t k, float* out, size_t out_stride) {
  size_t r = 0;
  const auto group = [&](auto row_count, auto column_count) HWY_ATTR {
    constexpr int kRows = decltype(row_count)::value;
    constexpr int kColumns = decltype(column_count)::value;
    for (; r + kRows <= rows; r += kRows) {
      const float* xr = x + r * x_stride;
      float* o = out + r * out_stride;
      size_t j = 0;
      for (; j + kColumns <= columns; j += kColumns) {
        DotTile<kRows, kColumns>(xr, x_stride, w + j * w_stride, w_stride, k, o + j, out_stride);
      }
      for (; j < columns; ++j)
        DotTile<kRows, 1>(xr, x_stride, w + j * w_stride, w_stride, k, o + j, out_stride);
    }
  };
  using One = std::integral_constant<int, 1>;
  using Two = std::integral_constant<int, 2>;
  using Four = std::integral_constant<int, 4>;
  group(Four(), Two());
  group(Two(), One());
  group(One(), One());
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
