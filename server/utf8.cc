#include "server/utf8.h"

#include "runtime/tokenizer/utf8.h"

namespace latchd {

std::optional<size_t> FirstInvalidUtf8(std::string_view text) {
  const size_t valid = ValidUtf8Prefix(text);
  if (valid == text.size()) return std::nullopt;
  return valid;
}

std::string ToValidUtf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  AppendLossyUtf8(bytes, /*at_end=*/true, &out);
  return out;
}

std::string TruncateUtf8(std::string text, size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  size_t end = max_bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  text.resize(end);
  return text;
}

}  // namespace latchd
