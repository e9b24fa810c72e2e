#include "runtime/tokenizer/utf8.h"

#include <cstring>

namespace latchd {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

struct Sequence {
  size_t length = 1;  // bytes of the character, or of the maximal subpart of an ill-formed one
  bool valid = false;
  bool truncated = false;  // not valid, but more bytes could make it so
};

// The sequence that begins at `bytes[0]`. The second byte's range depends on the first, which rules
// out overlong forms, surrogates and values beyond U+10FFFF (table 3-7).
Sequence Scan(std::string_view bytes) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char lead = at(0);
  if (lead < 0x80) return {1, true, false};
  if (lead < 0xC2 || lead > 0xF4) return {};
  const size_t length = Utf8Length(lead);
  unsigned char low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return {i, false, true};
    if (at(i) < low || at(i) > high) return {i, false, false};
    low = 0x80, high = 0xBF;
  }
  return {length, true, false};
}

}  // namespace

size_t ValidUtf8Prefix(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    // Most text is ASCII: take eight bytes at a time while it is.
    uint64_t word;
    if (text.size() - i >= sizeof word) {
      std::memcpy(&word, text.data() + i, sizeof word);
      if ((word & 0x8080808080808080u) == 0) {
        i += sizeof word;
        continue;
      }
    }
    const Sequence sequence = Scan(text.substr(i));
    if (!sequence.valid) return i;
    i += sequence.length;
  }
  return i;
}

char32_t NextCodePoint(std::string_view text, size_t* position) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(text[*position + i]); };
  const unsigned char lead = at(0);
  const size_t length = Utf8Length(lead);
  char32_t code_point = length == 1 ? lead : lead & (0x7F >> length);
  for (size_t i = 1; i < length; ++i) code_point = (code_point << 6) | (at(i) & 0x3F);
  *position += length;
  return code_point;
}

void AppendUtf8(char32_t c, std::string* out) {
  const auto tail = [&](int shift) {
    out->push_back(static_cast<char>(0x80 | ((c >> shift) & 0x3F)));
  };
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out->push_back(static_cast<char>(0xC0 | (c >> 6)));
    tail(0);
  } else if (c < 0x10000) {
    out->push_back(static_cast<char>(0xE0 | (c >> 12)));
    tail(6), tail(0);
  } else {
    out->push_back(static_cast<char>(0xF0 | (c >> 18)));
    tail(12), tail(6), tail(0);
  }
}

size_t AppendLossyUtf8(std::string_view bytes, bool at_end, std::string* out) {
  size_t i = 0;
  while (i < bytes.size()) {
    const size_t valid = ValidUtf8Prefix(bytes.substr(i));
    out->append(bytes.substr(i, valid));
    i += valid;
    if (i == bytes.size()) break;
    const Sequence sequence = Scan(bytes.substr(i));
    if (sequence.truncated && !at_end) break;
    out->append(kReplacement);
    i += sequence.length;
  }
  return i;
}

bool IsUnicodeSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

}  // namespace latchd
