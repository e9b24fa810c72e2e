#pragma once

#include "kernels/api/ops.h"
#include "kernels/cuda/common/device.cuh"

// What a matrix kernel does with finished sums. One place for all of them, so that decode rows and
// prefill rows cannot differ.

namespace latchd::cuda {

struct EpilogueParams {
  const RowMeta* meta;
  const float* bias;  // [n] or null
  void* y;            // [rows, n], or [rows, n / 2] for kSiluMul
  int64_t n;
  int32_t rows;
  Epilogue kind;
  DType y_dtype;
};

inline EpilogueParams MakeEpilogue(const LinearOp& op) {
  return {op.meta, op.bias, op.y, op.weight.n, op.rows, op.epilogue, op.y_dtype};
}

__device__ __forceinline__ void StoreAs(DType dtype, void* y, size_t at, float v) {
  switch (dtype) {
    case DType::kF32: static_cast<float*>(y)[at] = v; return;
    case DType::kF16: static_cast<__half*>(y)[at] = __float2half_rn(v); return;
    case DType::kBF16: static_cast<__nv_bfloat16*>(y)[at] = __float2bfloat16_rn(v); return;
  }
}

__device__ __forceinline__ float SiluMul(float gate, float up) {
  return gate / (1.0f + __expf(-gate)) * up;
}

// What kResidual adds to output `o` of row `r`; 0 for the other kinds. Apart from StoreOutput, so
// that it can be loaded before the sum is known.
__device__ __forceinline__ float LoadResidual(const EpilogueParams& p, int r, int64_t o) {
  if (p.kind != Epilogue::kResidual || r >= p.rows || o >= p.n) return 0.0f;
  return __ldcg(static_cast<const float*>(p.y) + static_cast<size_t>(r) * p.n + o);
}

// Output `o` of row `r`. For kStore and kResidual.
__device__ __forceinline__ void StoreOutput(const EpilogueParams& p, int r, int64_t o, float sum,
                                            float residual) {
  if (o >= p.n) return;
  if (p.bias != nullptr) sum += p.bias[o];
  if (p.kind == Epilogue::kResidual) sum += residual;
  StoreAs(p.y_dtype, p.y, static_cast<size_t>(r) * p.n + o, sum);
}
__device__ __forceinline__ void StoreOutput(const EpilogueParams& p, int r, int64_t o, float sum) {
  StoreOutput(p, r, o, sum, LoadResidual(p, r, o));
}

// Gate and up of W's rows `gate_row` and gate_row + 8 of row `r`: output (gate_row / 16) * 8 +
// gate_row % 8.
__device__ __forceinline__ void StoreGated(const EpilogueParams& p, int r, int64_t gate_row,
                                           float gate, float up) {
  if (gate_row + 8 >= p.n) return;
  if (p.bias != nullptr) {
    gate += p.bias[gate_row];
    up += p.bias[gate_row + 8];
  }
  const size_t at = static_cast<size_t>(r) * (p.n / 2) + gate_row / 16 * 8 + gate_row % 8;
  StoreAs(p.y_dtype, p.y, at, SiluMul(gate, up));
}

}  // namespace latchd::cuda
