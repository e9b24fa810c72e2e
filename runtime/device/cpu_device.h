#pragma once

#include <memory>

#include "runtime/device/device.h"

namespace latchd {

// The CPU as a Device: ops run as called; a graph is the recorded list of calls with their bound
// addresses. A real backend with the semantics of CUDA, capture rules included. `threads`: 0 = all
// cores.
std::unique_ptr<Device> CreateCpuDevice(int threads);

}  // namespace latchd
