#include <algorithm>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "runtime/tokenizer/pattern.h"

namespace latchd {
namespace {

constexpr size_t npos = std::string_view::npos;

// Oniguruma's Unicode \w (UTS #18 "word"); PCRE2 10.42's has no marks and no connectors but "_".
constexpr std::string_view kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
// Outside classes Oniguruma looks Latin-1 up in another table, in which these are word characters.
constexpr std::string_view kLatin1Word = R"(\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE})";

absl::Status Refuse(std::string_view what, size_t offset) {
  return absl::UnimplementedError(
      absl::StrCat(std::string(what), " at offset ", offset, " of the pattern is not supported"));
}

// Walks the pattern once; the only state is whether we are inside a character class.
class Translator {
 public:
  explicit Translator(std::string_view in) : in_(in) {}

  absl::StatusOr<std::string> Run() {
    while (i_ < in_.size()) {
      const char c = in_[i_];
      absl::Status status;
      if (c == '\\') {
        status = Escape();
      } else if (in_class_) {
        status = ClassCharacter(c);
      } else {
        status = Character(c);
      }
      if (!status.ok()) return status;
    }
    return out_;
  }

 private:
  void Copy(size_t n) {
    out_.append(in_.substr(i_, n));
    i_ += std::min(n, in_.size() - i_);
  }
  void Replace(size_t n, std::string_view with) {
    out_.append(with);
    i_ += n;
  }
  bool Next(size_t ahead, char c) const { return i_ + ahead < in_.size() && in_[i_ + ahead] == c; }

  absl::Status Escape() {
    if (i_ + 1 == in_.size())
      return absl::InvalidArgumentError("the pattern ends with a backslash");
    const std::string word =
        absl::StrCat(std::string(kWord), in_class_ ? "" : std::string(kLatin1Word));
    switch (in_[i_ + 1]) {
      // PCRE2's \s also takes U+180E, Oniguruma's does not.
      case 's': Replace(2, R"(\p{White_Space})"); break;
      case 'S': Replace(2, R"(\P{White_Space})"); break;
      case 'w': Replace(2, in_class_ ? word : "[" + word + "]"); break;
      case 'W':
        if (in_class_) return Refuse(R"(\W inside a class)", i_);
        Replace(2, "[^" + word + "]");
        break;
      case 'b':
        if (in_class_) return Refuse(R"(\b inside a class)", i_);
        Replace(2, absl::StrCat("(?:(?<=[", word, "])(?![", word, "])|(?<![", word, "])(?=[", word,
                                "]))"));
        break;
      case 'u': {
        if (i_ + 6 > in_.size() || in_.substr(i_ + 2, 4).find_first_not_of(
                                       "0123456789abcdefABCDEF") != std::string_view::npos) {
          return absl::InvalidArgumentError(
              absl::StrCat("\\u without four hexadecimal digits at offset ", i_));
        }
        Replace(6, absl::StrCat("\\x{", std::string(in_.substr(i_ + 2, 4)), "}"));
        break;
      }
      // Another meaning in PCRE2 (\h is a hexadecimal digit in Oniguruma), or none of use here.
      case 'h':
      case 'H':
      case 'B':
      case 'G':
      case 'K':
      case 'g':
      case 'k':
      case 'y':
      case 'Y':
      case 'C':
      case 'c':
      case 'M':
      case 'N':
      case 'O':
      case 'Q':
      case 'E':
      case 'X':
      case 'R': return Refuse(std::string("\\") + in_[i_ + 1], i_);
      default: {
        // With its argument, so that the brace of \p{L} is not taken for an interval's.
        const bool braces = Next(2, '{') && std::string_view("pPx").find(in_[i_ + 1]) != npos;
        const size_t end = braces ? in_.find('}', i_) : npos;
        Copy(end == npos ? 2 : end + 1 - i_);
        break;
      }
    }
    return absl::OkStatus();
  }

  absl::Status ClassCharacter(char c) {
    if (c == '[') return Refuse("a class inside a class", i_);
    if (c == '&' && Next(1, '&')) return Refuse("a class intersection (&&)", i_);
    if (c == ']' && i_ != class_begin_) in_class_ = false;
    Copy(1);
    return absl::OkStatus();
  }

  absl::Status Character(char c) {
    if (c == '[') {
      in_class_ = true;
      Copy(Next(1, '^') ? 2 : 1);
      class_begin_ = i_;  // a "]" here is a member, not the end
      return absl::OkStatus();
    }
    // Ruby reads X{1,3}+ as (X{1,3})+, PCRE2 as possessive; Ruby reads (?m) as "dot matches
    // newline".
    if (c == '}' && Next(1, '+')) return Refuse("'}+'", i_);
    if (c == '(' && Next(1, '*')) return Refuse("'(*'", i_);
    if (c == '(' && Next(1, '?')) {
      size_t j = i_ + 2;
      while (j < in_.size() && (in_[j] == 'i' || in_[j] == 'm' || in_[j] == 'x' || in_[j] == '-')) {
        if (in_[j] != 'i' && in_[j] != '-') return Refuse(std::string("the option ") + in_[j], j);
        ++j;
      }
      if (j < in_.size() && std::string_view(":=!><-)").find(in_[j]) == std::string_view::npos) {
        return Refuse(std::string("the group (?") + in_[j], i_);
      }
    }
    Copy(1);
    return absl::OkStatus();
  }

  std::string_view in_;
  std::string out_;
  size_t i_ = 0;
  bool in_class_ = false;
  size_t class_begin_ = 0;
};

}  // namespace

absl::StatusOr<std::string> TranslateOniguruma(std::string_view pattern) {
  return Translator(pattern).Run();
}

}  // namespace latchd
