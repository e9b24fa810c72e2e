#include <algorithm>
#include <string>

#include "kernels/cuda/common/device.cuh"
#include "kernels/cuda/common/epilogue.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/packed_layout.h"
#include "kernels/cuda/ops_internal.h"

// Decode matrix product over row-major f32 weights: exact f32 arithmetic for parity tests and small
// models. One warp an output; eight rows share each weight load. A row's sum does not depend on the
// others: lanes stride over k, then the shuffle tree.

namespace latchd::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kRows = 8;

struct F32Params {
  const float* weight;  // [n, k]
  const float* x;       // [rows, k]
  int32_t k;
  EpilogueParams epilogue;
};

// sums[i] = W[o] . x[row0 + i]
__device__ __forceinline__ void Dot(const F32Params& p, int64_t o, int row0, float (&sums)[kRows]) {
  const int lane = threadIdx.x % 32;
  const float* w = p.weight + o * p.k;
  const float* x = p.x + static_cast<size_t>(row0) * p.k;
  const int rows = min(kRows, p.epilogue.rows - row0);
#pragma unroll
  for (int i = 0; i < kRows; ++i) sums[i] = 0.0f;
  if (p.k % 4 == 0) {
    for (int c = lane * 4; c < p.k; c += 128) {
      const float4 a = __ldg(reinterpret_cast<const float4*>(w + c));
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (i >= rows) break;
        const float4 b =
            __ldcg(reinterpret_cast<const float4*>(x + static_cast<size_t>(i) * p.k + c));
        sums[i] = fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, sums[i]))));
      }
    }
  } else {
    for (int c = lane; c < p.k; c += 32) {
      const float a = __ldg(w + c);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (i >= rows) break;
        sums[i] = fmaf(a, __ldcg(x + static_cast<size_t>(i) * p.k + c), sums[i]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) sums[i] = WarpSum(sums[i]);
}

__global__ void __launch_bounds__(kWarps * 32)
    LinearF32Kernel(const __grid_constant__ F32Params p) {
  WaitForPrevious();
  AllowNext();
  const EpilogueParams& e = p.epilogue;
  const bool gated = e.kind == Epilogue::kSiluMul;
  const int64_t outputs = gated ? e.n / 2 : e.n;
  const int64_t o = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (o >= outputs) return;
  const int64_t row = gated ? o / 8 * kTileRows + o % 8 : o;
  const int lane = threadIdx.x % 32;
  for (int row0 = 0; row0 < e.rows; row0 += kRows) {
    float sums[kRows], up[kRows];
    Dot(p, row, row0, sums);
    if (gated) Dot(p, row + 8, row0, up);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int r = row0 + i;
      if (lane != i || r >= e.rows || e.meta[r].slot < 0) continue;
      if (gated) {
        StoreGated(e, r, row, sums[i], up[i]);
      } else {
        StoreOutput(e, r, row, sums[i]);
      }
    }
  }
}

}  // namespace

OpStatus LinearDecodeF32(const LinearOp& op, OpStream stream) {
  if (op.x_dtype != DType::kF32) {
    return Invalid("linear: x of an f32 weight must be f32, got " + std::string(Name(op.x_dtype)));
  }
  if (const size_t need = LinearDecodeWorkspaceBytes(op); need > op.workspace_bytes) {
    return WorkspaceTooSmall("linear", need, op.workspace_bytes);
  }
  F32Params p = {static_cast<const float*>(op.weight.data), static_cast<const float*>(op.x),
                 static_cast<int32_t>(op.weight.k), MakeEpilogue(op)};
  if (op.norm_weight != nullptr) {
    if (OpStatus s = NormRows(op, op.workspace, DType::kF32, stream); !s.ok()) return s;
    p.x = static_cast<const float*>(op.workspace);
  }
  const int64_t outputs = op.epilogue == Epilogue::kSiluMul ? op.weight.n / 2 : op.weight.n;
  return Launch("linear f32", LinearF32Kernel,
                dim3(static_cast<unsigned>((outputs + kWarps - 1) / kWarps)), dim3(kWarps * 32), 0,
                stream, LaunchOrder::kAfterPrevious, p);
}

OpStatus InitLinearDecodeF32() { return Prepare("linear f32", LinearF32Kernel); }

}  // namespace latchd::cuda
