#include "kernels/cpu/linear_internal.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear_simd.cc"
#include "hwy/foreach_target.h"  // must come before highway.h

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "kernels/cpu/load-inl.h"

HWY_BEFORE_NAMESPACE();
namespace latchd::cpu {
namespace HWY_NAMESPACE {

template <class T>
void LoadInputAs(const LinearOp& op, const T* x, float* HWY_RESTRICT out) {
  const DF df;
  const size_t lanes = hn::Lanes(df);
  const size_t k = static_cast<size_t>(op.weight.k);
  const size_t whole = k / lanes * lanes;
  // One multiplication by (1/rms * weight) instead of two would round differently from the formula
  // in ops.h.
  VF scale = hn::Set(df, 1.0f);
  if (op.norm_weight != nullptr) {
    VF squares = hn::Zero(df);
    for (size_t i = 0; i < whole; i += lanes) {
      const VF v = LoadF32(df, x + i);
      squares = hn::MulAdd(v, v, squares);
    }
    if (whole < k) {
      const VF v = LoadTail(df, x + whole, k - whole);
      squares = hn::MulAdd(v, v, squares);
    }
    const float mean = Sum(df, squares) / static_cast<float>(k);
    scale = hn::Set(df, 1.0f / std::sqrt(mean + op.norm_eps));
  }
  const auto scaled = [&](VF v, size_t i, size_t count) HWY_ATTR {
    if (op.norm_weight == nullptr) return v;
    const VF weight = count == lanes ? hn::LoadU(df, op.norm_weight + i)
                                     : LoadTail(df, op.norm_weight + i, count);
    return hn::Mul(hn::Mul(v, scale), weight);
  };
  for (size_t i = 0; i < whole; i += lanes) {
    hn::StoreU(scaled(LoadF32(df, x + i), i, lanes), df, out + i);
  }
  if (whole < k) {
    HWY_ALIGN float tail[hn::MaxLanes(DF())];
    hn::Store(scaled(LoadTail(df, x + whole, k - whole), whole, k - whole), df, tail);
    std::memcpy(out + whole, tail, (k - whole) * sizeof(float));
  }
}

void LoadInputT(const LinearOp& op, int64_t row, float* out) {
  const size_t at = static_cast<size_t>(row) * static_cast<size_t>(op.weight.k);
  switch (op.x_dtype) {
    case DType::kF32: return LoadInputAs(op, static_cast<const float*>(op.x) + at, out);
    case DType::kF16: return LoadInputAs(op, static_cast<const hwy::float16_t*>(op.x) + at, out);
    case DType::kBF16: return LoadInputAs(op, static_cast<const hwy::bfloat16_t*>(op.x) + at, out);
  }
}

void SiluMulT(float* z, int64_t columns) {
  const hn::CappedTag<float, 8> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto one = hn::Set(d, 1.0f);
  const auto limit = hn::Set(d, 88.0f);  // Exp is not defined far above it; silu(-88) is 0 already
  for (int64_t group = 0; group < columns; group += 16) {
    for (int64_t j = 0; j < 8; j += lanes) {
      const auto gate = hn::LoadU(d, z + group + j);
      const auto up = hn::LoadU(d, z + group + 8 + j);
      const auto exponent = hn::Min(hn::Neg(gate), limit);
      const auto silu = hn::Div(gate, hn::Add(one, hn::Exp(d, exponent)));
      hn::StoreU(hn::Mul(silu, up), d, z + group / 2 + j);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace latchd::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace latchd::cpu {

HWY_EXPORT(LoadInputT);
HWY_EXPORT(SiluMulT);

void LoadInput(const LinearOp& op, int64_t row, float* out) {
  HWY_DYNAMIC_DISPATCH(LoadInputT)(op, row, out);
}

void SiluMul(float* z, int64_t columns) { HWY_DYNAMIC_DISPATCH(SiluMulT)(z, columns); }

}  // namespace latchd::cpu
#endif
