#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

// UTF-8 as the tokenizers need it: strict validation, and decoding of bytes that may be wrong.

namespace latchd {

// The length of the longest prefix that is well-formed UTF-8 (Unicode 15, table 3-7); text.size()
// when all of it is.
size_t ValidUtf8Prefix(std::string_view text);

// Bytes of the character that `lead` begins: 1..4. REQUIRES: well-formed text.
inline size_t Utf8Length(unsigned char lead) {
  return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

// The code point at `*position`, which moves past it. REQUIRES: well-formed text.
char32_t NextCodePoint(std::string_view text, size_t* position);

void AppendUtf8(char32_t code_point, std::string* out);

// Appends `bytes` with U+FFFD for each maximal subpart of an ill-formed sequence (Unicode 15,
// section 3.9; what WHATWG's decoder and Rust's from_utf8_lossy do). With `at_end` false, an
// incomplete character at the end is left alone. Returns how many bytes were used.
size_t AppendLossyUtf8(std::string_view bytes, bool at_end, std::string* out);

// Unicode White_Space.
bool IsUnicodeSpace(char32_t code_point);

}  // namespace latchd
