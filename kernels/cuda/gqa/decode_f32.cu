#include "kernels/cuda/gqa/decode_kernel.cuh"
#include "kernels/cuda/gqa/decode_run.h"

namespace latchd::cuda {

OpStatus RunDecodeF32(const AttendParams& p, void* stream) { return RunDecode<float>(p, stream); }
OpStatus PrepareDecodeF32() { return PrepareDecode<float>(); }

}  // namespace latchd::cuda
