#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/api/op_table.h"

namespace latchd {

class Device;

enum class MemoryKind : uint8_t {
  kDevice,       // read and written by ops; the host uses Upload/Download
  kPinned,       // host memory that the device uploads from (StepInputs)
  kHostVisible,  // written by the device, polled by the host (RowResult)
};

// Owns one allocation; frees it on destruction. Move-only. The device must outlive it.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device* device, void* data, size_t bytes, MemoryKind kind, std::string label);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  template <typename T = void>
  T* data() const {
    return static_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }
  const std::string& label() const { return label_; }

 private:
  void Free();

  Device* device_ = nullptr;
  void* data_ = nullptr;
  size_t bytes_ = 0;
  MemoryKind kind_ = MemoryKind::kDevice;
  std::string label_;
};

// A recorded step: a CUDA graph, or on the CPU a list of calls with bound addresses. Replay with
// Device::Replay.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual size_t nodes() const = 0;
  virtual size_t bytes() const = 0;  // device and host memory held, as far as it can be known
};

struct DeviceInfo {
  std::string name;     // "NVIDIA H200", or the CPU's model name
  std::string backend;  // "cpu", "cuda"
  int index = 0;
  size_t total_bytes = 0;
  size_t free_bytes = 0;  // at creation
  int compute_units = 0;  // SMs, or threads the kernels use
};

// One compute device and one stream: everything is ordered as called. Not thread-safe: the step
// loop is the only caller after start-up. Errors: INTERNAL for a device fault, which is sticky
// (fault() stays non-OK and every later call returns it); RESOURCE_EXHAUSTED for memory;
// FAILED_PRECONDITION for what a capture forbids.
class Device {
 public:
  virtual ~Device() = default;

  virtual const DeviceInfo& info() const = 0;
  virtual const OpTable& ops() const = 0;

  // Zero-filled memory. FAILED_PRECONDITION while capturing: "warm the fixed decode shape first".
  absl::StatusOr<Buffer> Allocate(size_t bytes, MemoryKind kind, std::string_view label);

  // Stream-ordered copies. Upload may return before the copy is done but has consumed `source`.
  // Download waits. FAILED_PRECONDITION while capturing.
  virtual absl::Status Upload(void* destination, const void* source, size_t bytes) = 0;
  virtual absl::Status Download(void* destination, const void* source, size_t bytes) = 0;
  virtual absl::Status Fill(void* destination, uint8_t byte, size_t bytes) = 0;

  // Runs one op (eager), or records it between BeginCapture and EndCapture.
  virtual absl::Status Run(const OpCall& call) = 0;
  virtual absl::Status BeginCapture() = 0;
  virtual absl::StatusOr<std::unique_ptr<Graph>> EndCapture() = 0;
  virtual bool capturing() const = 0;
  virtual absl::Status Replay(const Graph& graph) = 0;

  // Waits for everything submitted so far.
  virtual absl::Status Synchronize() = 0;
  // OK, or the sticky device fault.
  virtual absl::Status fault() const = 0;

  // Bytes allocated now by label, for the start-up report and metrics.
  const std::map<std::string, size_t>& allocations() const { return allocations_; }

 protected:
  virtual absl::StatusOr<void*> AllocateRaw(size_t bytes, MemoryKind kind) = 0;
  virtual void FreeRaw(void* data, MemoryKind kind) = 0;

 private:
  friend class Buffer;
  std::map<std::string, size_t> allocations_;
};

// `spec`: "auto" (a GPU when the build and the machine have one, else the CPU), "cpu", "cuda" or
// "cuda:N". `threads`: CPU threads, 0 = all cores. INVALID_ARGUMENT for another spec; UNAVAILABLE
// when there is no such device.
absl::StatusOr<std::unique_ptr<Device>> CreateDevice(std::string_view spec, int threads);
// Why "auto" would not take a GPU ("built without CUDA", "no CUDA device: ..."); empty when it
// would.
std::string GpuUnavailableReason();

absl::Status ToStatus(const OpStatus& status);

}  // namespace latchd
