#include "kernels/cuda/gqa/decode_kernel.cuh"

namespace latchd::cuda {

OpStatus RunDecodeBF16(const AttendParams& p, void* stream) { return RunDecode<__nv_bfloat16>(p, stream); }
OpStatus PrepareDecodeBF16() { return PrepareDecode<__nv_bfloat16>(); }

}  // namespace latchd::cuda
