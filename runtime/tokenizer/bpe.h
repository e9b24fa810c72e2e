#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "runtime/tokenizer/subword_model.h"

namespace latchd {

// Ids beyond this are refused: tables are indexed by id, and no vocabulary comes near.
inline constexpr int64_t kMaxVocab = int64_t{1} << 22;

// Byte pair encoding of one word (Sennrich et al. 2016): symbols are merged pair by pair, lowest
// rank first, leftmost among equals. Immutable after building; thread-safe.
class Bpe final : public SubwordModel {
 public:
  struct Options {
    bool byte_fallback = false;  // a character without a token becomes its bytes, "<0xNN>"
    bool ignore_merges = false;  // a word that is a token is that token (Llama 3)
    bool fuse_unk = false;       // neighbouring unknown characters become one unknown token
    std::optional<int32_t> unk;  // without it, unknown characters are dropped
  };

  // Building. AddToken: INVALID_ARGUMENT when text or id is taken, or the id is out of range.
  absl::Status AddToken(std::string_view text, int64_t id);
  // INVALID_ARGUMENT when a part, or the two joined, is not a token. Ranks ascend in call order.
  absl::Status AddMerge(std::string_view left, std::string_view right);
  // A merge of known ids with an explicit rank.
  void AddMerge(int32_t left, int32_t right, int32_t merged, int32_t rank);
  // After the last token and merge.
  void Finish(const Options& options);

  // O(n log n) in the length of the word. Always OK.
  absl::Status Encode(std::string_view word, std::vector<int32_t>* ids) const override;

  std::optional<int32_t> Find(std::string_view token) const;
  int32_t size() const override { return static_cast<int32_t>(tokens_.size()); }
  const std::string& token(int32_t id) const override { return tokens_[id]; }

 private:
  struct Merge {
    int32_t rank = 0;
    int32_t merged = 0;
  };
  struct Symbol {
    int32_t id = 0;
    int32_t previous = -1;
    int32_t next = -1;
    bool alive = true;
  };
  const Merge* FindMerge(int32_t left, int32_t right) const;
  void AppendSymbols(std::string_view word, std::vector<Symbol>* symbols) const;
  bool AppendBytes(std::string_view character, std::vector<Symbol>* symbols) const;

  Options options_;
  absl::flat_hash_map<std::string, int32_t> ids_;
  std::vector<std::string> tokens_;
  absl::flat_hash_map<uint64_t, Merge> merges_;  // by left << 32 | right
  int32_t next_rank_ = 0;
  std::vector<int32_t> byte_tokens_;  // [256], -1 where absent
};

}  // namespace latchd
