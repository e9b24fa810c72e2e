#include "runtime/model/file_error.h"

#include "absl/strings/escaping.h"

namespace latchd {

std::string Printable(std::string_view text) {
  constexpr size_t kMaxBytes = 80;
  const std::string_view head = text.substr(0, kMaxBytes);
  std::string out = absl::CHexEscape(std::string(head));
  if (head.size() < text.size()) absl::StrAppend(&out, "... (", text.size(), " bytes)");
  return out;
}

}  // namespace latchd
