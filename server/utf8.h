#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

// UTF-8 at the border: protobuf `string` fields must hold valid UTF-8, while one token may be half
// a character.

namespace latchd {

// Byte offset of the first byte that is not part of a well-formed character (RFC 3629: no overlong
// forms, no surrogates, at most U+10FFFF), or nothing.
std::optional<size_t> FirstInvalidUtf8(std::string_view text);

// Each maximal invalid part becomes one U+FFFD (Unicode 15, section 3.9).
std::string ToValidUtf8(std::string_view bytes);

// At most `max_bytes` of valid UTF-8, never ending inside a character.
std::string TruncateUtf8(std::string text, size_t max_bytes);

}  // namespace latchd
