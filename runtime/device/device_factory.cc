#include <charconv>

#include "absl/strings/str_cat.h"
#include "runtime/device/cpu_device.h"
#include "runtime/device/device.h"
#if LATCHD_HAS_CUDA
#include "runtime/device/cuda_device.h"
#endif

namespace latchd {

std::string GpuUnavailableReason() {
#if LATCHD_HAS_CUDA
  return CudaUnavailableReason();
#else
  return "built without CUDA";
#endif
}

absl::StatusOr<std::unique_ptr<Device>> CreateDevice(std::string_view spec, int threads) {
  if (spec == "cpu") return CreateCpuDevice(threads);
  if (spec == "auto" && !GpuUnavailableReason().empty()) return CreateCpuDevice(threads);

  int index = 0;
  bool valid = spec == "cuda" || spec == "auto";
  constexpr std::string_view kCudaPrefix = "cuda:";
  if (spec.starts_with(kCudaPrefix)) {
    const std::string_view number = spec.substr(kCudaPrefix.size());
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), index);
    valid = error == std::errc() && end == number.data() + number.size() && index >= 0;
  }
  if (!valid) {
    return absl::InvalidArgumentError(
        absl::StrCat("device: expected auto, cpu, cuda or cuda:N (N = 0, 1, ...), got '",
                     std::string(spec), "'"));
  }
#if LATCHD_HAS_CUDA
  if (const std::string reason = CudaUnavailableReason(); !reason.empty()) {
    return absl::UnavailableError(
        absl::StrCat("device ", std::string(spec), ": ", reason, "; use --device cpu"));
  }
  return CreateCudaDevice(index);
#else
  return absl::UnavailableError(
      absl::StrCat("device ", std::string(spec), ": built without CUDA; use --device cpu"));
#endif
}

}  // namespace latchd
