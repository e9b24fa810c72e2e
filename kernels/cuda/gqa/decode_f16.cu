#include "kernels/cuda/gqa/decode_mma.cuh"
#include "kernels/cuda/gqa/decode_run.h"

namespace latchd::cuda {

OpStatus RunDecodeF16(const AttendParams& p, void* stream) {
  return RunDecodeMma<__half>(p, stream);
}
OpStatus PrepareDecodeF16() { return PrepareDecodeMma<__half>(); }

}  // namespace latchd::cuda
