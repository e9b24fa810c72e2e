#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/ops_internal.h"

namespace latchd::cuda {

// Captured, this is a memcpy node that reads the pinned buffer anew at each replay.
OpStatus Upload(const UploadOp& op, OpStream stream) {
  return FromCuda(cudaMemcpyAsync(op.destination, op.host_source, op.bytes, cudaMemcpyHostToDevice,
                                  static_cast<cudaStream_t>(stream)),
                  "upload: cudaMemcpyAsync");
}

}  // namespace latchd::cuda
