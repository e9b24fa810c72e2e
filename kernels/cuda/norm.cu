#include "kernels/cuda/common/device.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/norm.cuh"
#include "kernels/cuda/ops_internal.h"

namespace latchd::cuda {
namespace {

// Skipped rows are converted too: their values go nowhere.
template <typename T>
__global__ void __launch_bounds__(kNormThreads) NormKernel(const float* x, const float* weight, float eps, int k,
                                                           T* out) {
  __shared__ float squares[kNormWarps];
  WaitForPrevious();
  AllowNext();
  const float* row = x + static_cast<size_t>(blockIdx.x) * k;
  T* y = out + static_cast<size_t>(blockIdx.x) * k;
  float inverse = 1.0f;
  if (weight != nullptr) {
    const float sum = WarpSquares(row, k);
    if (threadIdx.x % 32 == 0) squares[threadIdx.x / 32] = sum;
    __syncthreads();
    inverse = InverseRms(squares, k, eps);
  }
  for (int i = threadIdx.x; i < k; i += kNormThreads) {
    const float v = __ldcg(row + i);
    y[i] = Element<T>::From(weight != nullptr ? v * inverse * weight[i] : v);
  }
}

template <typename T>
OpStatus LaunchNorm(const LinearOp& op, void* out, OpStream stream) {
  return Launch("norm", NormKernel<T>, dim3(static_cast<unsigned>(op.rows)), dim3(kNormThreads), 0, stream,
                LaunchOrder::kAfterPrevious, static_cast<const float*>(op.x), op.norm_weight, op.norm_eps,
                static_cast<int>(op.weight.k), static_cast<T*>(out));
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
