#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace latchd {

// The one sentence form of a malformed model file: "FILE: FIELD: expected E, got G". `file` may be
// empty where the caller adds it. INVALID_ARGUMENT.
inline absl::Status Malformed(const std::string& file, const std::string& field,
                              const std::string& expected, const std::string& got) {
  return absl::InvalidArgumentError(
      absl::StrCat(file, file.empty() ? "" : ": ", field, ": expected ", expected, ", got ", got));
}

// `status` with "FILE: " before its message; OK stays OK.
inline absl::Status WithPrefix(const std::string& file, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(file, ": ", std::string(status.message())));
}

// Text from a file, safe to put in a log line: control and non-ASCII bytes escaped, cut at 80
// bytes.
std::string Printable(std::string_view text);

}  // namespace latchd
