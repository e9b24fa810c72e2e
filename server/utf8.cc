#include "server/utf8.h"

#include <cstdint>

namespace latchd {
namespace {

// Length of the well-formed character at `text`'s start, or 0; then `*bad` is how many bytes the
// broken one spans.
size_t CharacterLength(std::string_view text, size_t* bad) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  *bad = 1;
  if (lead < 0x80) return 1;
  size_t length = 0;
  // Bounds of the second byte; the narrower ones exclude overlong forms, surrogates and values past
  // U+10FFFF.
  uint8_t low = 0x80, high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return 0;
  }
  for (size_t i = 1; i < length; ++i, low = 0x80, high = 0xBF) {
    if (i >= text.size() || byte(i) < low || byte(i) > high) {
      *bad = i;
      return 0;
    }
  }
  return length;
}

}  // namespace

std::optional<size_t> FirstInvalidUtf8(std::string_view text) {
  for (size_t at = 0, bad = 0; at < text.size();) {
    const size_t length = CharacterLength(text.substr(at), &bad);
    if (length == 0) return at;
    at += length;
  }
  return std::nullopt;
}

std::string ToValidUtf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (size_t at = 0, bad = 0; at < bytes.size();) {
    const size_t length = CharacterLength(bytes.substr(at), &bad);
    if (length == 0) {
      out += "\xEF\xBF\xBD";
      at += bad;
    } else {
      out += bytes.substr(at, length);
      at += length;
    }
  }
  return out;
}

std::string TruncateUtf8(std::string text, size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  size_t end = max_bytes;
  while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) --end;
  text.resize(end);
  return text;
}

}  // namespace latchd
