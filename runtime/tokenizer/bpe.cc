#include "runtime/tokenizer/bpe.h"

#include <algorithm>
#include <queue>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/tokenizer/utf8.h"

namespace latchd {
namespace {

uint64_t PairKey(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// A merge that was possible when it was queued.
struct Candidate {
  int32_t rank = 0;
  int32_t position = 0;  // index of the left symbol
  int32_t merged = 0;
  bool operator>(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : position > other.position;
  }
};

}  // namespace

absl::Status Bpe::AddToken(std::string_view text, int64_t id) {
  if (id < 0 || id >= kMaxVocab) {
    return absl::InvalidArgumentError(absl::StrCat(
        "token '", std::string(text), "': expected an id in 0..", kMaxVocab - 1, ", got ", id));
  }
  if (text.empty()) return absl::InvalidArgumentError(absl::StrCat("token ", id, " is empty"));
  if (id >= size()) tokens_.resize(id + 1);
  if (!tokens_[id].empty()) {
    return absl::InvalidArgumentError(absl::StrCat("id ", id, " is given to two tokens, '",
                                                   tokens_[id], "' and '", std::string(text), "'"));
  }
  if (!ids_.emplace(std::string(text), static_cast<int32_t>(id)).second) {
    return absl::InvalidArgumentError(
        absl::StrCat("token '", std::string(text), "' has two ids, ", *Find(text), " and ", id));
  }
  tokens_[id] = std::string(text);
  return absl::OkStatus();
}

absl::Status Bpe::AddMerge(std::string_view left, std::string_view right) {
  const std::string joined = absl::StrCat(std::string(left), std::string(right));
  const std::optional<int32_t> left_id = Find(left), right_id = Find(right), merged = Find(joined);
  if (!left_id || !right_id || !merged) {
    const std::string missing = !left_id    ? std::string(left)
                                : !right_id ? std::string(right)
                                            : joined;
    return absl::InvalidArgumentError(absl::StrCat("the merge of '", std::string(left), "' and '",
                                                   std::string(right), "' needs the token '",
                                                   missing, "', which the vocabulary lacks"));
  }
  AddMerge(*left_id, *right_id, *merged, next_rank_++);
  return absl::OkStatus();
}

void Bpe::AddMerge(int32_t left, int32_t right, int32_t merged, int32_t rank) {
  merges_[PairKey(left, right)] = {rank, merged};
}

void Bpe::Finish(const Options& options) {
  options_ = options;
  byte_tokens_.assign(256, -1);
  for (int b = 0; b < 256; ++b) {
    if (const auto id = Find(absl::StrFormat("<0x%02X>", b))) byte_tokens_[b] = *id;
  }
}

std::optional<int32_t> Bpe::Find(std::string_view token) const {
  const auto it = ids_.find(absl::string_view(token.data(), token.size()));
  if (it == ids_.end()) return std::nullopt;
  return it->second;
}

const Bpe::Merge* Bpe::FindMerge(int32_t left, int32_t right) const {
  const auto it = merges_.find(PairKey(left, right));
  return it == merges_.end() ? nullptr : &it->second;
}

bool Bpe::AppendBytes(std::string_view character, std::vector<Symbol>* symbols) const {
  for (const char c : character) {
    if (byte_tokens_[static_cast<unsigned char>(c)] < 0) return false;
  }
  for (const char c : character) {
    symbols->push_back({byte_tokens_[static_cast<unsigned char>(c)]});
  }
  return true;
}

void Bpe::AppendSymbols(std::string_view word, std::vector<Symbol>* symbols) const {
  bool after_unknown = false;
  for (size_t i = 0; i < word.size();) {
    const std::string_view character =
        word.substr(i, Utf8Length(static_cast<unsigned char>(word[i])));
    i += character.size();
    const std::optional<int32_t> id = Find(character);
    bool unknown = false;
    if (id) {
      symbols->push_back({*id});
    } else if (!(options_.byte_fallback && AppendBytes(character, symbols)) && options_.unk) {
      unknown = true;
      if (!(after_unknown && options_.fuse_unk)) symbols->push_back({*options_.unk});
    }
    after_unknown = unknown;
  }
  for (size_t i = 0; i < symbols->size(); ++i) {
    (*symbols)[i].previous = static_cast<int32_t>(i) - 1;
    (*symbols)[i].next = i + 1 < symbols->size() ? static_cast<int32_t>(i + 1) : -1;
  }
}

absl::Status Bpe::Encode(std::string_view word, std::vector<int32_t>* ids) const {
  if (word.empty()) return absl::OkStatus();
  if (options_.ignore_merges) {
    if (const auto id = Find(word)) {
      ids->push_back(*id);
      return absl::OkStatus();
    }
  }
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  AppendSymbols(word, &symbols);

  std::vector<Candidate> storage;
  storage.reserve(symbols.size());
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue(std::greater<>(),
                                                                               std::move(storage));
  const auto offer = [&](int32_t position) {
    if (position < 0 || symbols[position].next < 0) return;
    const Merge* merge = FindMerge(symbols[position].id, symbols[symbols[position].next].id);
    if (merge != nullptr) queue.push({merge->rank, position, merge->merged});
  };
  for (size_t i = 0; i < symbols.size(); ++i) offer(static_cast<int32_t>(i));

  // The queue is never searched: a candidate whose symbols have changed since is dropped when it
  // comes up. Each merge removes one symbol and offers at most two candidates.
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Symbol& left = symbols[top.position];
    if (!left.alive || left.next < 0) continue;
    Symbol& right = symbols[left.next];
    const Merge* merge = FindMerge(left.id, right.id);
    if (merge == nullptr || merge->merged != top.merged) continue;
    left.id = top.merged;
    right.alive = false;
    left.next = right.next;
    if (left.next >= 0) symbols[left.next].previous = top.position;
    offer(left.previous);
    offer(top.position);
  }
  for (int32_t i = symbols.empty() ? -1 : 0; i >= 0; i = symbols[i].next) {
    ids->push_back(symbols[i].id);
  }
  return absl::OkStatus();
}

}  // namespace latchd
