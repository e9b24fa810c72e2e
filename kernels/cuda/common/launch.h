#pragma once

#include <cuda_runtime.h>

#include <string>
#include <utility>

#include "kernels/api/op_status.h"

// Host side of a launch: every CUDA call is checked and becomes an OpStatus that names it.

namespace latchd::cuda {

OpStatus Invalid(std::string message);
OpStatus Unsupported(std::string message);
OpStatus WorkspaceTooSmall(const char* op, size_t needed, size_t given);
// OK for cudaSuccess; else kDeviceFault (kResourceExhausted for memory): "<what>: <CUDA's words>".
OpStatus FromCuda(cudaError_t error, const char* what);

// Streaming multiprocessors of the current device. Read once per device, by CudaOpsInit at the
// latest.
int SmCount();

inline size_t Align256(size_t bytes) { return (bytes + 255) & ~size_t{255}; }

// kAfterPrevious: the kernel may start while its predecessor still runs; it must call
// WaitForPrevious. Stream capture turns this into a programmatic edge of the graph. kOrdered is for
// kernels that follow a copy.
enum class LaunchOrder { kOrdered, kAfterPrevious };

template <typename... Params, typename... Args>
OpStatus Launch(const char* name, void (*kernel)(Params...), dim3 grid, dim3 block,
                size_t shared_bytes, void* stream, LaunchOrder order, Args&&... args) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = order == LaunchOrder::kAfterPrevious ? 1 : 0;
  return FromCuda(
      cudaLaunchKernelEx(&config, kernel, static_cast<Params>(std::forward<Args>(args))...), name);
}

// Loads the kernel on the current device, gives it all of the multiprocessor's memory as shared
// memory (kernels that want different shares cannot run side by side: a multiprocessor must drain
// before it changes its share, which cost 15% of a step), and allows it `shared_bytes` of dynamic
// shared memory.
template <typename Kernel>
OpStatus Prepare(const char* name, Kernel* kernel, size_t shared_bytes = 0) {
  cudaFuncAttributes attributes;
  cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
  if (error == cudaSuccess && shared_bytes > 48 * 1024) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(shared_bytes));
  }
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared);
  }
  return FromCuda(error, name);
}

}  // namespace latchd::cuda
