#include "kernels/cuda/gqa/decode_kernel.cuh"

namespace latchd::cuda {

OpStatus RunDecodeF16(const AttendParams& p, void* stream) { return RunDecode<__half>(p, stream); }
OpStatus PrepareDecodeF16() { return PrepareDecode<__half>(); }

}  // namespace latchd::cuda
