#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/device/device.h"

namespace latchd {

// One CUDA GPU as a Device: one stream, graphs by stream capture (thread-local mode). Loads every
// kernel at creation, so that nothing is loaded inside a capture. Calls from any one thread at a
// time; each selects the GPU first. UNAVAILABLE when there is no such GPU or it is older than what
// the build has code for.
absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(int index);

// Why no GPU can be used ("no CUDA driver: ...", "no CUDA device: ..."); empty when one can.
std::string CudaUnavailableReason();

}  // namespace latchd
