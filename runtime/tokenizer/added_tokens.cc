#include "runtime/tokenizer/added_tokens.h"

#include <utf8proc.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "runtime/tokenizer/utf8.h"

namespace latchd {
namespace {

constexpr size_t kMaxContentBytes = 512;

// Where the character before `end` begins. REQUIRES: end > 0.
size_t PreviousStart(std::string_view text, size_t end) {
  do {
    --end;
  } while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80);
  return end;
}

// \w of Rust's regex crate: letters, marks, decimal digits, connectors.
bool IsWordCharacter(std::string_view text, size_t at) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(NextCodePoint(text, &at)))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: return false;
  }
}

bool IsSingleWord(std::string_view text, size_t begin, size_t end) {
  const bool left = begin == 0 || !IsWordCharacter(text, PreviousStart(text, begin));
  const bool right = end == text.size() || !IsWordCharacter(text, end);
  return left && right;
}

}  // namespace

absl::Status AddedTokenMatcher::Add(const AddedToken& token, std::string_view as) {
  if (as.empty()) return absl::OkStatus();  // normalized away: can never be found
  if (as.size() > kMaxContentBytes) {
    return absl::InvalidArgumentError(absl::StrCat("added token ", token.id, ": expected at most ",
                                                   kMaxContentBytes, " bytes, got ", as.size()));
  }
  uint64_t node = 0;
  for (const char c : as) {
    const auto next = static_cast<uint32_t>(nodes_.size());
    const auto [edge, inserted] =
        edges_.try_emplace(node << 8 | static_cast<unsigned char>(c), next);
    if (inserted) nodes_.emplace_back();
    node = edge->second;
  }
  first_bytes_[static_cast<unsigned char>(as[0])] = true;
  nodes_[node].token = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(token);
  return absl::OkStatus();
}

int32_t AddedTokenMatcher::Longest(std::string_view text, size_t position, size_t* length) const {
  int32_t best = -1;
  uint64_t node = 0;
  for (size_t i = position; i < text.size(); ++i) {
    const auto edge = edges_.find(node << 8 | static_cast<unsigned char>(text[i]));
    if (edge == edges_.end()) break;
    node = edge->second;
    if (nodes_[node].token >= 0) {
      best = nodes_[node].token;
      *length = i + 1 - position;
    }
  }
  return best;
}

std::vector<AddedTokenMatcher::Part> AddedTokenMatcher::Split(std::string_view text,
                                                              bool parse_special) const {
  std::vector<Part> parts;
  size_t done = 0;  // everything before is in `parts`
  const auto push = [&](size_t begin, size_t end, std::optional<int32_t> id) {
    parts.push_back({{static_cast<uint32_t>(begin), static_cast<uint32_t>(end)}, id});
  };
  for (size_t i = 0; i < text.size() && !tokens_.empty();) {
    size_t length = 0;
    if (!first_bytes_[static_cast<unsigned char>(text[i])]) {
      ++i;
      continue;
    }
    const int32_t found = Longest(text, i, &length);
    if (found < 0) {
      ++i;
      continue;
    }
    const AddedToken& token = tokens_[found];
    size_t begin = i, end = i + length;
    i = end;
    if (token.special && !parse_special) continue;
    if (token.single_word && !IsSingleWord(text, begin, end)) continue;
    if (token.lstrip) {
      while (begin > done) {
        size_t at = PreviousStart(text, begin);
        const size_t start = at;
        if (!IsUnicodeSpace(NextCodePoint(text, &at))) break;
        begin = start;
      }
    }
    if (token.rstrip) {
      for (size_t next = end; next < text.size() && IsUnicodeSpace(NextCodePoint(text, &next));) {
        end = next;
      }
    }
    i = std::max(i, end);
    if (begin > done) push(done, begin, std::nullopt);
    push(begin, end, token.id);
    done = end;
  }
  if (done < text.size()) push(done, text.size(), std::nullopt);
  return parts;
}

}  // namespace latchd
