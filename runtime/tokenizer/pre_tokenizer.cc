#include "runtime/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <array>

#include "runtime/tokenizer/utf8.h"

namespace latchd {
namespace {

struct ByteTable {
  std::array<std::string, 256> characters;
  std::array<int16_t, 512> bytes;  // by code point
};

// Printable Latin-1 stands for itself; the other bytes take the code points from 256 on, in order
// (openai/gpt-2, encoder.py, bytes_to_unicode).
const ByteTable& Table() {
  static const ByteTable* const table = [] {
    auto* t = new ByteTable;
    t->bytes.fill(-1);
    char32_t next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool printable =
          (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
      const char32_t c = printable ? static_cast<char32_t>(b) : next++;
      AppendUtf8(c, &t->characters[b]);
      t->bytes[c] = static_cast<int16_t>(b);
    }
    return t;
  }();
  return *table;
}

// A stretch of one word: a match of the pattern, or what lies between two.
struct Piece {
  Range range;
  bool match = false;
};

// Turns the pieces of one word into words, as the behaviour says.
void Emit(SplitBehavior behavior, const std::vector<Piece>& pieces, std::vector<Range>* out) {
  const auto push = [&](Range range) {
    if (range.begin < range.end) out->push_back(range);
  };
  const size_t n = pieces.size();
  switch (behavior) {
    case SplitBehavior::kIsolated:
      for (const Piece& piece : pieces) push(piece.range);
      break;
    case SplitBehavior::kRemoved:
      for (const Piece& piece : pieces) {
        if (!piece.match) push(piece.range);
      }
      break;
    case SplitBehavior::kContiguous:
    case SplitBehavior::kMergedWithPrevious:
      for (size_t i = 0; i < n;) {
        Range range = pieces[i].range;
        size_t j = i + 1;
        if (behavior == SplitBehavior::kContiguous) {
          while (j < n && pieces[j].match == pieces[i].match) range.end = pieces[j++].range.end;
        } else if (j < n && pieces[j].match && !pieces[i].match) {
          range.end = pieces[j++].range.end;
        }
        push(range);
        i = j;
      }
      break;
    case SplitBehavior::kMergedWithNext:
      for (size_t i = 0; i < n;) {
        Range range = pieces[i].range;
        size_t j = i + 1;
        if (j < n && pieces[i].match && !pieces[j].match) range.end = pieces[j++].range.end;
        push(range);
        i = j;
      }
      break;
  }
}

absl::Status Split(const Pattern& pattern, SplitBehavior behavior, bool invert, WordList* list) {
  absl::StatusOr<std::vector<Pattern::Match>> matches = pattern.FindAll(list->text, list->words);
  if (!matches.ok()) return matches.status();
  std::vector<Range> out;
  out.reserve(list->words.size() + matches->size());
  std::vector<Piece> pieces;
  size_t m = 0;
  for (size_t w = 0; w < list->words.size(); ++w) {
    const Range word = list->words[w];
    pieces.clear();
    uint32_t at = word.begin;
    for (; m < matches->size() && (*matches)[m].word == w; ++m) {
      const Range found = (*matches)[m].range;
      if (found.begin > at) pieces.push_back({{at, found.begin}, invert});
      pieces.push_back({found, !invert});
      at = found.end;
    }
    if (at < word.end) pieces.push_back({{at, word.end}, invert});
    Emit(behavior, pieces, &out);
  }
  // Only a removed first word changes where the list begins.
  if (out.empty() || out[0].begin != 0) list->at_text_start = false;
  list->words = std::move(out);
  return absl::OkStatus();
}

// Rebuilds the text word by word: `append` writes the new form of a word.
template <typename Append>
void Rewrite(WordList* list, size_t reserve, const Append& append) {
  std::string out;
  out.reserve(reserve);
  for (size_t w = 0; w < list->words.size(); ++w) {
    Range& word = list->words[w];
    const std::string_view old =
        std::string_view(list->text).substr(word.begin, word.end - word.begin);
    word.begin = static_cast<uint32_t>(out.size());
    append(w, old, &out);
    word.end = static_cast<uint32_t>(out.size());
  }
  list->text = std::move(out);
}

absl::Status Apply(const SplitStep& step, WordList* list) {
  return Split(*step.pattern, step.behavior, step.invert, list);
}

absl::Status Apply(const ByteLevelStep& step, WordList* list) {
  if (step.add_prefix_space) {
    Rewrite(list, list->text.size() + list->words.size(),
            [](size_t, std::string_view old, std::string* out) {
              if (old.front() != ' ') out->push_back(' ');
              out->append(old);
            });
  }
  if (step.pattern != nullptr) {
    absl::Status status = Split(*step.pattern, SplitBehavior::kIsolated, false, list);
    if (!status.ok()) return status;
  }
  const ByteTable& table = Table();
  Rewrite(list, list->text.size() * 2, [&](size_t, std::string_view old, std::string* out) {
    for (const char c : old) out->append(table.characters[static_cast<unsigned char>(c)]);
  });
  return absl::OkStatus();
}

absl::Status Apply(const MetaspaceStep& step, WordList* list) {
  using Prepend = MetaspaceStep::Prepend;
  const bool at_start = list->at_text_start;
  Rewrite(list, list->text.size() * 2, [&](size_t w, std::string_view old, std::string* out) {
    const size_t begin = out->size();
    for (const char c : old) {
      if (c == ' ') {
        out->append(step.replacement);
      } else {
        out->push_back(c);
      }
    }
    const bool prepend =
        step.prepend == Prepend::kAlways || (step.prepend == Prepend::kFirst && at_start && w == 0);
    if (prepend &&
        std::string_view(*out).substr(begin, step.replacement.size()) != step.replacement) {
      out->insert(begin, step.replacement);
    }
  });
  if (step.split == nullptr) return absl::OkStatus();
  return Split(*step.split, SplitBehavior::kMergedWithNext, false, list);
}

}  // namespace

absl::Status PreTokenizer::Apply(WordList* list) const {
  for (const Step& step : steps_) {
    absl::Status status =
        std::visit([&](const auto& kind) { return latchd::Apply(kind, list); }, step);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

const std::string& ByteLevelCharacter(unsigned char byte) { return Table().characters[byte]; }

int ByteLevelByte(char32_t c) { return c < Table().bytes.size() ? Table().bytes[c] : -1; }

}  // namespace latchd
