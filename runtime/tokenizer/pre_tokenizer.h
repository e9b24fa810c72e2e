#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/tokenizer/pattern.h"

namespace latchd {

// GPT-2's pattern, as the `tokenizers` package has it in ByteLevel(use_regex=true).
inline constexpr char kGpt2Pattern[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// What happens to the matches of a Split; names and meaning as in tokenizer.json.
enum class SplitBehavior : uint8_t {
  kRemoved,
  kIsolated,
  kMergedWithPrevious,
  kMergedWithNext,
  kContiguous,
};

struct SplitStep {
  std::unique_ptr<Pattern> pattern;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;  // the matches are what is kept, the rest is what is split at
};
// Words as bytes, each byte written as one printable character (GPT-2's table).
struct ByteLevelStep {
  bool add_prefix_space = false;
  std::unique_ptr<Pattern> pattern;  // null: use_regex is false
};
// Blanks become `replacement` (normally U+2581).
struct MetaspaceStep {
  enum class Prepend : uint8_t { kNever, kFirst, kAlways };
  std::string replacement;
  Prepend prepend = Prepend::kAlways;
  std::unique_ptr<Pattern> split;  // the replacement character, or null: do not split at it
};

// Text cut into words; no token spans two words.
struct WordList {
  std::string text;
  std::vector<Range> words;   // ascending, not empty
  bool at_text_start = true;  // words[0] begins where the caller's text begins
};

// Immutable and thread-safe.
class PreTokenizer {
 public:
  using Step = std::variant<SplitStep, ByteLevelStep, MetaspaceStep>;

  template <typename Kind>  // one of Step's
  void Add(Kind step) {
    steps_.emplace_back(std::in_place_type<Kind>, std::move(step));
  }
  // RESOURCE_EXHAUSTED: see Pattern.
  absl::Status Apply(WordList* list) const;

 private:
  std::vector<Step> steps_;
};

// GPT-2's byte alphabet: the character (as UTF-8) that stands for each byte.
const std::string& ByteLevelCharacter(unsigned char byte);
// The byte that a character stands for, or -1.
int ByteLevelByte(char32_t code_point);

}  // namespace latchd
