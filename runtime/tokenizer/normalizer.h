#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "runtime/tokenizer/pattern.h"

namespace latchd {

enum class UnicodeForm : uint8_t { kNfc, kNfd, kNfkc, kNfkd };

struct PrependNormalizer {
  std::string text;
};
struct ReplaceNormalizer {
  std::unique_ptr<Pattern> pattern;
  std::string with;  // taken literally
};
struct StripNormalizer {
  bool left = true;
  bool right = true;
};

// The steps applied to text before it is split, in order. Null steps do not exist: a tokenizer
// without a normalizer has an empty list. Immutable and thread-safe.
class Normalizer {
 public:
  using Step = std::variant<UnicodeForm, PrependNormalizer, ReplaceNormalizer, StripNormalizer>;

  template <typename Kind>  // one of Step's
  void Add(Kind step) {
    steps_.emplace_back(std::in_place_type<Kind>, std::move(step));
  }
  bool empty() const { return steps_.empty(); }
  // Changes `text` in place. REQUIRES: well-formed UTF-8. RESOURCE_EXHAUSTED: see Pattern.
  absl::Status Apply(std::string* text) const;

 private:
  std::vector<Step> steps_;
};

// `text` in a Unicode normalisation form (UAX #15), by utf8proc, in O(n log n).
absl::Status NormalizeUnicode(UnicodeForm form, std::string* text);

}  // namespace latchd
