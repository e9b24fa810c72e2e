#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace latchd {

// How tokens become text. Only what can be done token by token (so that text can be streamed), and
// the removal of one leading blank, are representable; other decoders are refused when read.
class TokenDecoder {
 public:
  struct Replace {
    std::string from;  // not empty
    std::string to;
  };
  struct ByteFallback {};  // "<0x0A>" is the byte 10
  struct ByteLevel {};     // GPT-2's byte alphabet
  using Step = std::variant<Replace, ByteFallback, ByteLevel>;

  template <typename Kind>  // one of Step's
  void Add(Kind step) {
    steps_.emplace_back(std::in_place_type<Kind>, std::move(step));
  }
  void StripLeadingSpace() { strips_leading_space_ = true; }

  // The bytes that a vocabulary entry stands for.
  std::string Bytes(std::string_view token) const;
  // The same for an added token, which is text and no byte alphabet.
  std::string AddedTokenBytes(std::string_view content) const;
  // SentencePiece puts a blank before the text; decoding takes it away again.
  bool strips_leading_space() const { return strips_leading_space_; }

 private:
  std::vector<Step> steps_;
  bool strips_leading_space_ = false;
};

}  // namespace latchd
