#include "runtime/device/device.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace latchd {

Buffer::Buffer(Device* device, void* data, size_t bytes, MemoryKind kind, std::string label)
    : device_(device), data_(data), bytes_(bytes), kind_(kind), label_(std::move(label)) {}

Buffer::Buffer(Buffer&& other) noexcept { *this = std::move(other); }

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  Free();
  device_ = std::exchange(other.device_, nullptr);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  kind_ = other.kind_;
  label_ = std::move(other.label_);
  return *this;
}

Buffer::~Buffer() { Free(); }

void Buffer::Free() {
  if (device_ == nullptr) return;
  device_->allocations_[label_] -= bytes_;
  device_->FreeRaw(data_, kind_);
  device_ = nullptr;
  data_ = nullptr;
}

absl::StatusOr<Buffer> Device::Allocate(size_t bytes, MemoryKind kind, std::string_view label) {
  if (capturing()) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot allocate ", bytes, " bytes for '", std::string(label),
                     "' while capturing: warm the fixed decode shape first"));
  }
  absl::StatusOr<void*> data = AllocateRaw(bytes, kind);
  if (!data.ok()) {
    return absl::Status(data.status().code(),
                        absl::StrCat("allocating ", bytes, " bytes for '", std::string(label),
                                     "': ", data.status().message()));
  }
  std::string name(label);
  allocations_[name] += bytes;
  return Buffer(this, *data, bytes, kind, std::move(name));
}

absl::Status ToStatus(const OpStatus& status) {
  switch (status.code()) {
    case OpCode::kOk: return absl::OkStatus();
    case OpCode::kInvalidArgument: return absl::InvalidArgumentError(status.message());
    case OpCode::kUnsupported: return absl::UnimplementedError(status.message());
    case OpCode::kResourceExhausted: return absl::ResourceExhaustedError(status.message());
    case OpCode::kFailedPrecondition: return absl::FailedPreconditionError(status.message());
    case OpCode::kDeviceFault: return absl::InternalError(status.message());
  }
  return absl::InternalError("unknown op status");
}

}  // namespace latchd
