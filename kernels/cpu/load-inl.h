// Per-target include guard: foreach_target.h includes this once for each instruction set.
#if defined(LATCHD_KERNELS_CPU_LOAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LATCHD_KERNELS_CPU_LOAD_INL_H_
#undef LATCHD_KERNELS_CPU_LOAD_INL_H_
#else
#define LATCHD_KERNELS_CPU_LOAD_INL_H_
#endif

#include <cmath>
#include <cstring>

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

}  // namespace HWY_NAMESPACE
}  // namespace latchd::cpu
HWY_AFTER_NAMESPACE();

#endif
