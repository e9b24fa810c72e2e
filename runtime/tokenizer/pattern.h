#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace latchd {

// [begin, end) in bytes.
struct Range {
  uint32_t begin = 0;
  uint32_t end = 0;
};

// A regular expression of a tokenizer. tokenizer.json writes them for Oniguruma (Ruby syntax,
// UTF-8); they run on PCRE2, so what the two read differently (\s, \w, \b, \uHHHH, ^ and $) is
// translated and what cannot be is refused. Immutable and thread-safe.
class Pattern {
 public:
  // INVALID_ARGUMENT: not a regular expression. UNIMPLEMENTED: a construct that is read
  // differently.
  static absl::StatusOr<std::unique_ptr<Pattern>> Compile(const std::string& oniguruma);
  // A pattern that matches exactly `text`.
  static absl::StatusOr<std::unique_ptr<Pattern>> Literal(std::string_view text);
  ~Pattern();
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;

  // Appends every match in `words` of `text`, leftmost first, none overlapping; each word is
  // matched as a text of its own (look-behind and look-ahead do not see beyond it). `emit(word,
  // match)` is called in order. RESOURCE_EXHAUSTED when the pattern backtracks beyond reason.
  // REQUIRES: well-formed UTF-8, words on character borders.
  struct Match {
    uint32_t word = 0;  // index into `words`
    Range range;        // in `text`
  };
  absl::StatusOr<std::vector<Match>> FindAll(std::string_view text,
                                             const std::vector<Range>& words) const;

 private:
  struct Code;
  explicit Pattern(std::unique_ptr<Code> code);
  static absl::StatusOr<std::unique_ptr<Pattern>> CompilePcre(const std::string& pcre,
                                                              const std::string& shown);
  std::unique_ptr<Code> code_;
};

// The PCRE2 form of an Oniguruma pattern; exposed for its tests. UNIMPLEMENTED as above.
absl::StatusOr<std::string> TranslateOniguruma(std::string_view pattern);

}  // namespace latchd
