#include "runtime/tokenizer/text_tokenizer.h"

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "runtime/tokenizer/bpe.h"
#include "runtime/tokenizer/utf8.h"

namespace latchd {
namespace {

// Byte offsets are 32 bits wide, and normalizing or byte-level mapping may triple a text.
constexpr size_t kMaxTextBytes = size_t{1} << 28;

class TextTokenizer final : public Tokenizer {
 public:
  explicit TextTokenizer(TokenizerParts parts) : parts_(std::move(parts)) {}

  // Builds the tables; see BuildTokenizer.
  absl::Status Init();

  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text,
                                              const EncodeOptions& options) const override;
  absl::StatusOr<std::string> Decode(const std::vector<int32_t>& ids,
                                     bool skip_special) const override;

  std::string TokenBytes(int32_t id) const override {
    return Known(id) ? table_[id].bytes : std::string();
  }
  bool IsSpecial(int32_t id) const override { return Known(id) && table_[id].special; }
  std::optional<int32_t> TokenToId(std::string_view token) const override {
    const auto it = ids_.find(absl::string_view(token.data(), token.size()));
    if (it == ids_.end()) return std::nullopt;
    return it->second;
  }
  int32_t vocab_size() const override { return static_cast<int32_t>(table_.size()); }
  std::optional<int32_t> bos_token() const override { return parts_.bos; }
  std::vector<int32_t> eos_tokens() const override { return parts_.eos; }
  const std::string& chat_template() const override { return parts_.chat_template; }
  bool strips_leading_space() const override { return parts_.decoder.strips_leading_space(); }

 private:
  struct Entry {
    std::string bytes;
    bool special = false;
  };
  bool Known(int32_t id) const { return id >= 0 && id < vocab_size(); }
  absl::Status AddAdded(const AddedToken& token);
  absl::Status EncodeNormalized(std::string text, bool at_text_start,
                                std::vector<int32_t>* ids) const;

  TokenizerParts parts_;
  std::vector<Entry> table_;                       // by id
  absl::flat_hash_map<std::string, int32_t> ids_;  // by the vocabulary's spelling
  AddedTokenMatcher raw_matcher_;                  // in the text as it came
  AddedTokenMatcher normalized_matcher_;           // in the normalized text
};

absl::Status TextTokenizer::Init() {
  table_.resize(parts_.model->size());
  for (int32_t id = 0; id < parts_.model->size(); ++id) {
    const std::string& token = parts_.model->token(id);
    if (token.empty()) continue;
    table_[id].bytes = parts_.decoder.Bytes(token);
    ids_.emplace(token, id);
  }
  for (const AddedToken& token : parts_.added) {
    absl::Status status = AddAdded(token);
    if (!status.ok()) return status;
  }
  const auto check = [&](const std::vector<int32_t>& ids, const char* what) {
    for (const int32_t id : ids) {
      if (!Known(id)) {
        return absl::InvalidArgumentError(
            absl::StrCat(what, ": expected an id below ", vocab_size(), ", got ", id));
      }
    }
    return absl::OkStatus();
  };
  absl::Status status = check(parts_.prefix, "post_processor");
  if (status.ok()) status = check(parts_.suffix, "post_processor");
  if (status.ok()) status = check(parts_.eos, "eos token");
  if (status.ok() && parts_.bos) status = check({*parts_.bos}, "bos token");
  return status;
}

absl::Status TextTokenizer::AddAdded(const AddedToken& token) {
  if (token.content.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("added token ", token.id, " has no content"));
  }
  const auto [it, inserted] = ids_.emplace(token.content, token.id);
  if (it->second != token.id) {
    return absl::InvalidArgumentError(absl::StrCat("added token '", token.content,
                                                   "': expected id ", it->second,
                                                   " as in the vocabulary, got ", token.id));
  }
  if (token.id >= vocab_size()) table_.resize(token.id + 1);
  if (inserted && !table_[token.id].bytes.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("added token '", token.content, "': its id ",
                                                   token.id, " belongs to another token"));
  }
  // A normalized token stands for its normalized text, as in the `tokenizers` package.
  std::string content = token.content;
  const bool normalize = token.normalized && !parts_.normalizer.empty();
  if (normalize) {
    absl::Status status = parts_.normalizer.Apply(&content);
    if (!status.ok()) return status;
  }
  table_[token.id] = {parts_.decoder.AddedTokenBytes(content), token.special};
  return (normalize ? normalized_matcher_ : raw_matcher_).Add(token, content);
}

absl::StatusOr<std::vector<int32_t>> TextTokenizer::Encode(std::string_view text,
                                                           const EncodeOptions& options) const {
  if (text.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("text: expected at most ", kMaxTextBytes, " bytes, got ", text.size()));
  }
  const size_t valid = ValidUtf8Prefix(text);
  if (valid != text.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "text: expected UTF-8, got an invalid byte 0x",
        absl::Hex(static_cast<unsigned char>(text[valid]), absl::kZeroPad2), " at offset ", valid));
  }
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3 + 8);
  if (options.add_special_tokens) ids = parts_.prefix;
  for (const auto& part : raw_matcher_.Split(text, options.parse_special_tokens)) {
    if (part.id) {
      ids.push_back(*part.id);
      continue;
    }
    std::string segment(text.substr(part.range.begin, part.range.end - part.range.begin));
    absl::Status status = parts_.normalizer.Apply(&segment);
    if (!status.ok()) return status;
    const bool at_start = part.range.begin == 0;
    if (normalized_matcher_.empty()) {
      status = EncodeNormalized(std::move(segment), at_start, &ids);
      if (!status.ok()) return status;
      continue;
    }
    for (const auto& inner : normalized_matcher_.Split(segment, options.parse_special_tokens)) {
      if (inner.id) {
        ids.push_back(*inner.id);
        continue;
      }
      status =
          EncodeNormalized(segment.substr(inner.range.begin, inner.range.end - inner.range.begin),
                           at_start && inner.range.begin == 0, &ids);
      if (!status.ok()) return status;
    }
  }
  if (options.add_special_tokens) {
    ids.insert(ids.end(), parts_.suffix.begin(), parts_.suffix.end());
  }
  return ids;
}

absl::Status TextTokenizer::EncodeNormalized(std::string text, bool at_text_start,
                                             std::vector<int32_t>* ids) const {
  if (text.empty()) return absl::OkStatus();
  WordList list;
  list.words = {{0, static_cast<uint32_t>(text.size())}};
  list.text = std::move(text);
  list.at_text_start = at_text_start;
  absl::Status status = parts_.pre_tokenizer.Apply(&list);
  if (!status.ok()) return status;
  for (const Range& word : list.words) {
    status = parts_.model->Encode(
        std::string_view(list.text).substr(word.begin, word.end - word.begin), ids);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> TextTokenizer::Decode(const std::vector<int32_t>& ids,
                                                  bool skip_special) const {
  std::string bytes;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!Known(ids[i])) {
      return absl::InvalidArgumentError(absl::StrCat("token_ids[", i, "]: expected an id in 0..",
                                                     vocab_size() - 1, ", got ", ids[i]));
    }
    if (skip_special && table_[ids[i]].special) continue;
    bytes += table_[ids[i]].bytes;
  }
  std::string text;
  AppendLossyUtf8(bytes, /*at_end=*/true, &text);
  if (strips_leading_space() && !text.empty() && text[0] == ' ') text.erase(0, 1);
  return text;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> BuildTokenizer(TokenizerParts parts) {
  auto tokenizer = std::make_unique<TextTokenizer>(std::move(parts));
  absl::Status status = tokenizer->Init();
  if (!status.ok()) return status;
  return tokenizer;
}

}  // namespace latchd
