#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace latchd {

enum class OpCode : uint8_t {
  kOk,
  kInvalidArgument,  // a shape or dtype that the op does not take: our own bug, or a model we must
                     // refuse
  kUnsupported,      // a valid request that this backend has no kernel for
  kResourceExhausted,   // no memory
  kFailedPrecondition,  // e.g. a workspace that is too small while capturing
  kDeviceFault,         // the device's own error; sticky for the process
};

// Result of launching one op. kernels/ knows no absl; runtime/device converts this to absl::Status.
class [[nodiscard]] OpStatus {
 public:
  OpStatus() = default;
  OpStatus(OpCode code, std::string message) : code_(code), message_(std::move(message)) {}
  static OpStatus Ok() { return {}; }

  bool ok() const { return code_ == OpCode::kOk; }
  OpCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  OpCode code_ = OpCode::kOk;
  std::string message_;
};

}  // namespace latchd
