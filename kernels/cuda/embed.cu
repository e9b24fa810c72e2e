#include <string>

#include "kernels/cuda/common/device.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/packed_layout.h"
#include "kernels/cuda/ops_internal.h"

namespace latchd::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kThreads) EmbedKernel(EmbedOp op) {
  WaitForPrevious();
  AllowNext();
  const RowMeta meta = op.meta[blockIdx.x];
  if (meta.slot < 0) return;
  const T* table = static_cast<const T*>(op.table.data);
  const int64_t hidden = op.table.k;
  float* out = op.out + blockIdx.x * hidden;
  for (int64_t i = threadIdx.x; i < hidden; i += kThreads) {
    const size_t at = sizeof(T) == 4 ? static_cast<size_t>(meta.token * hidden + i)
                                     : PackedIndex(meta.token, i, hidden);
    out[i] = Element<T>::ToFloat(table[at]);
  }
  if (threadIdx.x == 0) {
    *op.tables.History(meta.slot, meta.past) =
        meta.token | ((meta.flags & kRowPrompt) != 0 ? kPromptBit : 0);
  }
}

}  // namespace

OpStatus Embed(const EmbedOp& op, OpStream stream) {
  if (op.rows <= 0) return OpStatus::Ok();
  void (*kernel)(EmbedOp) = nullptr;
  switch (op.table.dtype) {
    case DType::kF32: kernel = EmbedKernel<float>; break;
    case DType::kF16: kernel = EmbedKernel<__half>; break;
    case DType::kBF16: kernel = EmbedKernel<__nv_bfloat16>; break;
  }
  return Launch("embed", kernel, dim3(static_cast<unsigned>(op.rows)), dim3(kThreads), 0, stream,
                LaunchOrder::kAfterPrevious, op);
}

OpStatus InitEmbed() {
  if (OpStatus s = Prepare("embed f32", EmbedKernel<float>); !s.ok()) return s;
  if (OpStatus s = Prepare("embed f16", EmbedKernel<__half>); !s.ok()) return s;
  return Prepare("embed bf16", EmbedKernel<__nv_bfloat16>);
}

}  // namespace latchd::cuda
