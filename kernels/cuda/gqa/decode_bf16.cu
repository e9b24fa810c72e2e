#include "kernels/cuda/gqa/decode_mma.cuh"
#include "kernels/cuda/gqa/decode_run.h"

namespace latchd::cuda {

OpStatus RunDecodeBF16(const AttendParams& p, void* stream) {
  return RunDecodeMma<__nv_bfloat16>(p, stream);
}
OpStatus PrepareDecodeBF16() { return PrepareDecodeMma<__nv_bfloat16>(); }

}  // namespace latchd::cuda
