#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "runtime/tokenizer/pattern.h"

namespace latchd {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;      // skipped by Decode(skip_special), and by Encode unless parsed
  bool lstrip = false;       // takes the blanks before it
  bool rstrip = false;       // takes the blanks after it
  bool single_word = false;  // only between word borders
  bool normalized = false;   // looked for in the normalized text
};

// Finds added tokens in text, the longest at each position, leftmost first (a trie over bytes).
// Immutable after the last Add; thread-safe.
class AddedTokenMatcher {
 public:
  AddedTokenMatcher() : nodes_(1) {}
  // `as`: what is searched for; the content, or its normalized form. Longest 512 bytes, so that a
  // search costs at most 512 steps a byte.
  absl::Status Add(const AddedToken& token, std::string_view as);

  struct Part {
    Range range;
    std::optional<int32_t> id;  // none: plain text
  };
  // Cuts `text` into added tokens and the text between them; no part is empty. Special tokens are
  // plain text when `parse_special` is false. REQUIRES: well-formed UTF-8.
  std::vector<Part> Split(std::string_view text, bool parse_special) const;
  bool empty() const { return tokens_.empty(); }

 private:
  struct Node {
    int32_t token = -1;  // index into tokens_ of the token that ends here
  };
  // Index into tokens_ of the longest token at `position`, or -1; its length in `*length`.
  int32_t Longest(std::string_view text, size_t position, size_t* length) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;
  absl::flat_hash_map<uint64_t, uint32_t> edges_;  // node << 8 | byte -> node
  std::array<bool, 256> first_bytes_ = {};
};

}  // namespace latchd
