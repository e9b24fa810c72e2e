#pragma once

#include <gmock/gmock.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace latchd::testing {

inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

MATCHER(IsOk, "is OK") {
  *result_listener << StatusOf(arg).ToString();
  return arg.ok();
}

// A status of this code whose message contains `part`.
MATCHER_P2(Fails, code, part,
           "fails with " + absl::StatusCodeToString(code) + " saying \"" + std::string(part) +
               "\"") {
  const absl::Status& status = StatusOf(arg);
  *result_listener << status.ToString();
  return status.code() == code &&
         std::string(status.message()).find(std::string(part)) != std::string::npos;
}

}  // namespace latchd::testing
