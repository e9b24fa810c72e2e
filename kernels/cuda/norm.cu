#include "kernels/cuda/common/device.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/norm.cuh"
#include "kernels/cuda/ops_internal.h"

namespace latchd::cuda {
namespace {

__device__ __forceinline__ void Store4(float* to, const float4& v) {
  *reinterpret_cast<float4*>(to) = v;
}
template <typename T>
__device__ __forceinline__ void Store4(T* to, const float4& v) {
  *reinterpret_cast<uint2*>(to) = make_uint2(PackPair(v.x, v.y, T()), PackPair(v.z, v.w, T()));
}

// Rows of up to kHeld * 4 * kNormThreads elements stay in registers between the two passes.
constexpr int kHeld = 4;

// Skipped rows are converted too: their values go nowhere.
template <typename T>
__global__ void __launch_bounds__(kNormThreads)
    NormKernel(const float* x, const float* weight, float eps, int k, T* out) {
  __shared__ float squares[kNormWarps];
  const float* row = x + static_cast<size_t>(blockIdx.x) * k;
  T* y = out + static_cast<size_t>(blockIdx.x) * k;
  const bool held = k % 4 == 0 && k <= kHeld * 4 * kNormThreads;
  float4 gain[kHeld], v[kHeld];
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int c = (j * kNormThreads + threadIdx.x) * 4;
    gain[j] = held && weight != nullptr && c < k ? *reinterpret_cast<const float4*>(weight + c)
                                                 : make_float4(1, 1, 1, 1);
  }
  // Before the wait: the product that follows may then load weights while the kernel before this
  // one still runs. It reads nothing else before its own wait.
  AllowNext();
  WaitForPrevious();
  float inverse = 1.0f, sum = 0.0f;
  if (held) {
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int c = (j * kNormThreads + threadIdx.x) * 4;
      if (c < k) v[j] = __ldcg(reinterpret_cast<const float4*>(row + c));
    }
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      if ((j * kNormThreads + threadIdx.x) * 4 < k) sum = AddSquares(v[j], sum);
    }
    sum = WarpSum(sum);
  } else if (weight != nullptr) {
    sum = WarpSquares(row, k);
  }
  if (weight != nullptr) {
    if (threadIdx.x % 32 == 0) squares[threadIdx.x / 32] = sum;
    __syncthreads();
    inverse = InverseRms(squares, k, eps);
  }
  if (!held) {
    for (int i = threadIdx.x; i < k; i += kNormThreads) {
      const float f = __ldcg(row + i);
      y[i] = Element<T>::From(weight != nullptr ? f * inverse * weight[i] : f);
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int c = (j * kNormThreads + threadIdx.x) * 4;
    const float4& g = gain[j];
    if (c < k) {
      Store4(y + c, make_float4(v[j].x * inverse * g.x, v[j].y * inverse * g.y,
                                v[j].z * inverse * g.z, v[j].w * inverse * g.w));
    }
  }
}

template <typename T>
OpStatus LaunchNorm(const LinearOp& op, void* out, OpStream stream) {
  return Launch("norm", NormKernel<T>, dim3(static_cast<unsigned>(op.rows)), dim3(kNormThreads), 0,
                stream, LaunchOrder::kAfterPrevious, static_cast<const float*>(op.x),
                op.norm_weight, op.norm_eps, static_cast<int>(op.weight.k), static_cast<T*>(out));
}

}  // namespace

OpStatus NormRows(const LinearOp& op, void* out, DType out_dtype, OpStream stream) {
  switch (out_dtype) {
    case DType::kF32: return LaunchNorm<float>(op, out, stream);
    case DType::kF16: return LaunchNorm<__half>(op, out, stream);
    case DType::kBF16: return LaunchNorm<__nv_bfloat16>(op, out, stream);
  }
  return OpStatus::Ok();
}

OpStatus InitNorm() {
  if (OpStatus s = Prepare("norm f32", NormKernel<float>); !s.ok()) return s;
  if (OpStatus s = Prepare("norm f16", NormKernel<__half>); !s.ok()) return s;
  return Prepare("norm bf16", NormKernel<__nv_bfloat16>);
}

}  // namespace latchd::cuda
