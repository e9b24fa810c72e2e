#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

// The part of the SentencePiece library that latchd uses. Its header declares absl::string_view as
// std::string_view, which clashes with Abseil's own where both are included: so only the bridge's
// source includes it, and no Abseil header may be included here.

namespace latchd {

class SentencePieceBridge {
 public:
  SentencePieceBridge();
  ~SentencePieceBridge();

  // Both return the library's error message, empty for success.
  std::string Load(const std::string& path);
  std::string Encode(std::string_view text, std::vector<int>* ids) const;

  int size() const;
  std::string Piece(int id) const;
  bool IsControlOrUnknown(int id) const;
  int bos_id() const;  // -1: none
  int eos_id() const;  // -1: none

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace latchd
