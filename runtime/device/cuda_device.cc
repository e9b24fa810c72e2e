#include "runtime/device/cuda_device.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace latchd {
namespace {

// Half of the staging buffer: one half is filled while the other is on its way.
constexpr size_t kStagingBytes = size_t{8} << 20;

// Memory errors leave the device usable; every other error of a running device is sticky.
absl::Status CudaError(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string message = absl::StrCat(call, ": ", cudaGetErrorString(error));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // not sticky: forget it
    return absl::ResourceExhaustedError(message);
  }
  return absl::InternalError(message);
}

class CudaGraph final : public Graph {
 public:
  CudaGraph(cudaGraphExec_t exec, size_t nodes, size_t bytes)
      : exec_(exec), nodes_(nodes), bytes_(bytes) {}
  ~CudaGraph() override { cudaGraphExecDestroy(exec_); }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  size_t nodes() const override { return nodes_; }
  size_t bytes() const override { return bytes_; }
  cudaGraphExec_t exec() const { return exec_; }

 private:
  cudaGraphExec_t exec_;
  size_t nodes_;
  size_t bytes_;
};

class CudaDevice final : public Device {
 public:
  ~CudaDevice() override {
    cudaSetDevice(info_.index);
    if (stream_ != nullptr) {
      cudaStreamSynchronize(stream_);
      cudaStreamDestroy(stream_);
    }
    for (cudaEvent_t event : staged_) {
      if (event != nullptr) cudaEventDestroy(event);
    }
    if (staging_ != nullptr) cudaFreeHost(staging_);
  }

  absl::Status Open(int index) {
    info_.backend = "cuda";
    info_.index = index;
    cudaDeviceProp properties = {};
    if (absl::Status s = Check(cudaSetDevice(index), "cudaSetDevice"); !s.ok()) return s;
    if (absl::Status s =
            Check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
        !s.ok()) {
      return s;
    }
    info_.name = properties.name;
    info_.compute_units = properties.multiProcessorCount;
    if (absl::Status s =
            Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
        !s.ok()) {
      return s;
    }
    if (absl::Status s =
            Check(cudaMallocHost(reinterpret_cast<void**>(&staging_), 2 * kStagingBytes),
                  "cudaMallocHost");
        !s.ok()) {
      return s;
    }
    for (cudaEvent_t& event : staged_) {
      if (absl::Status s =
              Check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
          !s.ok()) {
        return s;
      }
    }
    if (absl::Status s = Latch(ToStatus(CudaOpsInit())); !s.ok()) return s;
    return Check(cudaMemGetInfo(&info_.free_bytes, &info_.total_bytes), "cudaMemGetInfo");
  }

  const DeviceInfo& info() const override { return info_; }
  const OpTable& ops() const override { return CudaOps(); }
  bool capturing() const override { return capturing_; }
  absl::Status fault() const override { return fault_; }

  // Goes through the pinned staging buffer in two halves, so that the copy into it overlaps the
  // transfer out of it, and `source` is free when the call returns.
  absl::Status Upload(void* destination, const void* source, size_t bytes) override {
    if (absl::Status s = Ready("upload"); !s.ok()) return s;
    const char* from = static_cast<const char*>(source);
    char* to = static_cast<char*>(destination);
    while (bytes > 0) {
      const size_t part = std::min(bytes, kStagingBytes);
      char* half = staging_ + static_cast<size_t>(next_half_) * kStagingBytes;
      cudaEvent_t event = staged_[next_half_];
      if (absl::Status s = Check(cudaEventSynchronize(event), "cudaEventSynchronize"); !s.ok())
        return s;
      std::memcpy(half, from, part);
      if (absl::Status s = Check(cudaMemcpyAsync(to, half, part, cudaMemcpyHostToDevice, stream_),
                                 "cudaMemcpyAsync");
          !s.ok()) {
        return s;
      }
      if (absl::Status s = Check(cudaEventRecord(event, stream_), "cudaEventRecord"); !s.ok())
        return s;
      next_half_ ^= 1;
      from += part;
      to += part;
      bytes -= part;
    }
    return absl::OkStatus();
  }

  absl::Status Download(void* destination, const void* source, size_t bytes) override {
    if (absl::Status s = Ready("download"); !s.ok()) return s;
    if (bytes == 0) return absl::OkStatus();
    if (absl::Status s =
            Check(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDefault, stream_),
                  "cudaMemcpyAsync");
        !s.ok()) {
      return s;
    }
    return Check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  }

  absl::Status Fill(void* destination, uint8_t byte, size_t bytes) override {
    if (absl::Status s = Ready("fill"); !s.ok()) return s;
    if (bytes == 0) return absl::OkStatus();
    return Check(cudaMemsetAsync(destination, byte, bytes, stream_), "cudaMemsetAsync");
  }

  absl::Status Run(const OpCall& call) override {
    if (absl::Status s = Select(); !s.ok()) return s;
    return Latch(ToStatus(Dispatch(CudaOps(), call, stream_)));
  }

  absl::Status BeginCapture() override {
    if (absl::Status s = Select(); !s.ok()) return s;
    if (capturing_) return absl::FailedPreconditionError("a capture is already running");
    if (absl::Status s = Check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
                               "cudaStreamBeginCapture");
        !s.ok()) {
      return s;
    }
    capturing_ = true;
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<Graph>> EndCapture() override {
    if (!capturing_) return absl::FailedPreconditionError("no capture is running");
    capturing_ = false;
    if (absl::Status s = Select(); !s.ok()) return s;
    cudaGraph_t graph = nullptr;
    if (const cudaError_t error = cudaStreamEndCapture(stream_, &graph); error != cudaSuccess) {
      cudaGetLastError();  // a failed capture does not break the device
      return absl::FailedPreconditionError(
          absl::StrCat("cudaStreamEndCapture: ", cudaGetErrorString(error)));
    }
    absl::StatusOr<std::unique_ptr<Graph>> result = Instantiate(graph);
    cudaGraphDestroy(graph);
    return result;
  }

  absl::Status Replay(const Graph& graph) override {
    if (absl::Status s = Ready("replay"); !s.ok()) return s;
    return Check(cudaGraphLaunch(static_cast<const CudaGraph&>(graph).exec(), stream_),
                 "cudaGraphLaunch");
  }

  absl::Status Synchronize() override {
    if (absl::Status s = Ready("synchronize"); !s.ok()) return s;
    return Check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  }

 protected:
  absl::StatusOr<void*> AllocateRaw(size_t bytes, MemoryKind kind) override {
    if (absl::Status s = Select(); !s.ok()) return s;
    void* data = nullptr;
    const size_t size = std::max<size_t>(bytes, 1);
    if (kind == MemoryKind::kDevice) {
      if (absl::Status s = Check(cudaMalloc(&data, size), "cudaMalloc"); !s.ok()) return s;
      absl::Status s = Check(cudaMemsetAsync(data, 0, size, stream_), "cudaMemsetAsync");
      if (!s.ok()) {
        cudaFree(data);
        return s;
      }
      return data;
    }
    // Mapped, portable host memory has one address for host and device (unified addressing).
    const unsigned flags = cudaHostAllocMapped | cudaHostAllocPortable;
    if (absl::Status s = Check(cudaHostAlloc(&data, size, flags), "cudaHostAlloc"); !s.ok())
      return s;
    std::memset(data, 0, size);
    return data;
  }

  void FreeRaw(void* data, MemoryKind kind) override {
    cudaSetDevice(info_.index);
    if (kind == MemoryKind::kDevice) {
      cudaFree(data);
    } else {
      cudaStreamSynchronize(stream_);  // the device may still write it
      cudaFreeHost(data);
    }
  }

 private:
  // Selects the GPU for the calling thread. Every public call begins with it and returns a fault
  // that is set.
  absl::Status Select() {
    if (!fault_.ok()) return fault_;
    return Check(cudaSetDevice(info_.index), "cudaSetDevice");
  }
  absl::Status Ready(const char* what) {
    if (capturing_)
      return absl::FailedPreconditionError(
          absl::StrCat(what, " is not allowed while capturing: warm the fixed decode shape first"));
    return Select();
  }

  // The only place that sets the fault: the first INTERNAL error wins. What the device's memory
  // holds after it is unknowable, so nothing runs any more.
  absl::Status Latch(absl::Status status) {
    if (status.code() == absl::StatusCode::kInternal && fault_.ok()) fault_ = status;
    return status;
  }
  absl::Status Check(cudaError_t error, const char* call) { return Latch(CudaError(error, call)); }

  absl::StatusOr<std::unique_ptr<Graph>> Instantiate(cudaGraph_t graph) {
    size_t nodes = 0;
    if (absl::Status s = Check(cudaGraphGetNodes(graph, nullptr, &nodes), "cudaGraphGetNodes");
        !s.ok())
      return s;
    size_t free_before = 0, free_after = 0, total = 0;
    cudaMemGetInfo(&free_before, &total);
    cudaGraphExec_t exec = nullptr;
    if (absl::Status s = Check(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
        !s.ok())
      return s;
    // Uploaded now, so that the first replay costs what the others do.
    if (absl::Status s = Check(cudaGraphUpload(exec, stream_), "cudaGraphUpload"); !s.ok()) {
      cudaGraphExecDestroy(exec);
      return s;
    }
    cudaMemGetInfo(&free_after, &total);
    // The driver takes memory in large pieces; a graph that found room in one shows as its nodes'
    // parameters.
    constexpr size_t kNodeBytes = 1024;
    const size_t taken = free_before > free_after ? free_before - free_after : 0;
    return std::make_unique<CudaGraph>(exec, nodes, std::max(taken, nodes * kNodeBytes));
  }

  DeviceInfo info_;
  cudaStream_t stream_ = nullptr;
  char* staging_ = nullptr;
  cudaEvent_t staged_[2] = {};
  int next_half_ = 0;
  bool capturing_ = false;
  absl::Status fault_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(int index) {
  int count = 0;
  if (const std::string reason = CudaUnavailableReason(); !reason.empty())
    return absl::UnavailableError(reason);
  cudaGetDeviceCount(&count);
  if (index < 0 || index >= count) {
    return absl::UnavailableError(
        absl::StrCat("CUDA device ", index, " does not exist: this machine has ", count));
  }
  auto device = std::make_unique<CudaDevice>();
  if (absl::Status s = device->Open(index); !s.ok()) {
    return absl::UnavailableError(absl::StrCat("CUDA device ", index, ": ", s.message()));
  }
  return device;
}

std::string CudaUnavailableReason() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return "";
  cudaGetLastError();
  if (error == cudaSuccess || error == cudaErrorNoDevice) return "no CUDA device";
  return absl::StrCat("no CUDA device: ", cudaGetErrorString(error));
}

}  // namespace latchd
