#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace latchd {

// Cuts one word (or, for SentencePiece, a whole stretch of text) into token ids. Immutable and
// thread-safe once built.
class SubwordModel {
 public:
  virtual ~SubwordModel() = default;

  // Appends the ids of `word`. REQUIRES: well-formed UTF-8.
  virtual absl::Status Encode(std::string_view word, std::vector<int32_t>* ids) const = 0;
  // Largest id + 1.
  virtual int32_t size() const = 0;
  // The token as the vocabulary writes it; empty for an id in a hole. REQUIRES: 0 <= id < size().
  virtual const std::string& token(int32_t id) const = 0;
};

}  // namespace latchd
