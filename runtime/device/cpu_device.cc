#include "runtime/device/cpu_device.h"

#include <sys/mman.h>
#include <sys/sysinfo.h>

#include <cstring>
#include <fstream>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "absl/strings/str_cat.h"

namespace latchd {
namespace {

std::string CpuModelName() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  std::string line;
  while (std::getline(cpuinfo, line)) {
    if (line.rfind("model name", 0) == 0) {
      const size_t colon = line.find(':');
      if (colon != std::string::npos && colon + 2 <= line.size()) return line.substr(colon + 2);
    }
  }
  return "CPU";
}

// Memory that a new allocation can take without swapping, as the kernel estimates it.
size_t AvailableBytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key, unit;
  size_t kib = 0;
  while (meminfo >> key >> kib >> unit) {
    if (key == "MemAvailable:") return kib * 1024;
  }
  return 0;
}

class CpuGraph final : public Graph {
 public:
  explicit CpuGraph(std::vector<OpCall> calls) : calls_(std::move(calls)) {}
  size_t nodes() const override { return calls_.size(); }
  size_t bytes() const override { return calls_.size() * sizeof(OpCall); }
  const std::vector<OpCall>& calls() const { return calls_; }

 private:
  std::vector<OpCall> calls_;
};

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(int threads) {
    info_.name = CpuModelName();
    info_.backend = "cpu";
    struct sysinfo system = {};
    if (sysinfo(&system) == 0) {
      info_.total_bytes = static_cast<size_t>(system.totalram) * system.mem_unit;
    }
    info_.free_bytes = AvailableBytes();
    info_.compute_units = SetCpuThreads(threads);
  }

  const DeviceInfo& info() const override { return info_; }
  const OpTable& ops() const override { return CpuOps(); }
  bool capturing() const override { return capturing_; }
  absl::Status fault() const override { return absl::OkStatus(); }
  absl::Status Synchronize() override { return absl::OkStatus(); }

  absl::Status Upload(void* destination, const void* source, size_t bytes) override {
    return Copy(destination, source, bytes, "upload");
  }
  absl::Status Download(void* destination, const void* source, size_t bytes) override {
    return Copy(destination, source, bytes, "download");
  }
  absl::Status Fill(void* destination, uint8_t byte, size_t bytes) override {
    if (capturing_) return WhileCapturing("fill");
    std::memset(destination, byte, bytes);
    return absl::OkStatus();
  }

  absl::Status Run(const OpCall& call) override {
    if (capturing_) {
      recorded_.push_back(call);
      return absl::OkStatus();
    }
    return Execute(call);
  }

  absl::Status BeginCapture() override {
    if (capturing_) return absl::FailedPreconditionError("a capture is already running");
    capturing_ = true;
    recorded_.clear();
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<Graph>> EndCapture() override {
    if (!capturing_) return absl::FailedPreconditionError("no capture is running");
    capturing_ = false;
    return std::make_unique<CpuGraph>(std::move(recorded_));
  }
  absl::Status Replay(const Graph& graph) override {
    if (capturing_) return WhileCapturing("replay");
    for (const OpCall& call : static_cast<const CpuGraph&>(graph).calls()) {
      if (absl::Status status = Execute(call); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

 protected:
  // Anonymous mappings are zero-filled and take no memory until they are touched, so that a large
  // KV pool costs what is used of it.
  absl::StatusOr<void*> AllocateRaw(size_t bytes, MemoryKind) override {
    const size_t mapped = bytes == 0 ? 1 : bytes;
    void* data = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) return absl::ResourceExhaustedError("out of memory");
    madvise(data, mapped, MADV_HUGEPAGE);
    sizes_[data] = mapped;
    return data;
  }
  void FreeRaw(void* data, MemoryKind) override {
    const auto entry = sizes_.find(data);
    if (entry == sizes_.end()) return;
    munmap(data, entry->second);
    sizes_.erase(entry);
  }

 private:
  static absl::Status WhileCapturing(const char* what) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, " is not allowed while capturing: warm the fixed decode shape first"));
  }
  absl::Status Copy(void* destination, const void* source, size_t bytes, const char* what) {
    if (capturing_) return WhileCapturing(what);
    std::memcpy(destination, source, bytes);
    return absl::OkStatus();
  }
  absl::Status Execute(const OpCall& call) { return ToStatus(Dispatch(CpuOps(), call, nullptr)); }

  DeviceInfo info_;
  bool capturing_ = false;
  std::vector<OpCall> recorded_;
  std::unordered_map<void*, size_t> sizes_;
};

}  // namespace

std::unique_ptr<Device> CreateCpuDevice(int threads) {
  return std::make_unique<CpuDevice>(threads);
}

}  // namespace latchd
