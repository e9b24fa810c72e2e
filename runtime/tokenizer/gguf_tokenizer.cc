#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "runtime/model/gguf.h"
#include "runtime/tokenizer/bpe.h"
#include "runtime/tokenizer/gguf_pre_tokenizer.h"
#include "runtime/tokenizer/text_tokenizer.h"
#include "runtime/tokenizer/utf8.h"

// tokenizer.ggml.* metadata (ggml/docs/gguf.md and llama.cpp's llama-vocab.cpp).

namespace latchd {
namespace {

constexpr char kBlank[] = "\xE2\x96\x81";  // U+2581
// Every split of a SentencePiece piece becomes a merge, so a piece must not be megabytes long.
constexpr size_t kMaxPieceBytes = 512;

// llama.cpp's token types.
enum class TokenType : int64_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

class Reader {
 public:
  explicit Reader(const GgufFile& file) : file_(file) {}

  absl::StatusOr<TokenizerParts> Run() {
    const std::string model = Text("tokenizer.ggml.model", "");
    if (!status_.ok()) return status_;
    if (model != "gpt2" && model != "llama") {
      return absl::UnimplementedError(absl::StrCat(
          file_.name(), ": tokenizer.ggml.model: the model ", model, " is not supported"));
    }
    ReadTokens();
    if (status_.ok()) model == "gpt2" ? ReadByteLevel() : ReadSentencePiece();
    if (status_.ok()) ReadSpecial();
    if (!status_.ok()) return status_;
    return std::move(parts_);
  }

 private:
  void Fail(const std::string& key, const absl::Status& status) {
    if (!status_.ok() || status.ok()) return;
    status_ = absl::Status(
        status.code(), absl::StrCat(file_.name(), ": ", key, ": ", std::string(status.message())));
  }
  void Expected(const std::string& key, const std::string& what, const std::string& got) {
    Fail(key, absl::InvalidArgumentError(absl::StrCat("expected ", what, ", got ", got)));
  }
  // The file's own errors name file and key already.
  template <typename T>
  T Value(absl::StatusOr<T> value) {
    if (value.ok()) return *std::move(value);
    if (status_.ok()) status_ = value.status();
    return T();
  }
  std::string Text(const std::string& key, const std::string& fallback) {
    return file_.Find(key) == nullptr ? fallback : std::string(Value(file_.String(key)));
  }
  bool Flag(const std::string& key, bool fallback) {
    return file_.Find(key) == nullptr ? fallback : Value(file_.Bool(key));
  }
  std::optional<int32_t> TokenId(const std::string& key) {
    if (file_.Find(key) == nullptr) return std::nullopt;
    const int64_t id = Value(file_.Int(key));
    // Some converters write -1 or 2^32 - 1 for "none".
    if (id == -1 || id == 0xFFFFFFFF || !status_.ok()) return std::nullopt;
    if (id < 0 || id >= static_cast<int64_t>(tokens_.size())) {
      Expected(key, absl::StrCat("an id below ", tokens_.size()), absl::StrCat(id));
      return std::nullopt;
    }
    return static_cast<int32_t>(id);
  }

  void ReadTokens() {
    const std::string key = "tokenizer.ggml.tokens", type_key = "tokenizer.ggml.token_type";
    tokens_ = Value(file_.Strings(key));
    if (!status_.ok()) return;
    if (tokens_.empty() || tokens_.size() > kMaxVocab) {
      return Expected(key, absl::StrCat("1..", kMaxVocab, " tokens"), absl::StrCat(tokens_.size()));
    }
    types_.assign(tokens_.size(), static_cast<int64_t>(TokenType::kNormal));
    if (file_.Find(type_key) != nullptr) types_ = Value(file_.Ints(type_key));
    if (!status_.ok()) return;
    if (types_.size() != tokens_.size()) {
      return Expected(type_key, absl::StrCat(tokens_.size(), " types"),
                      absl::StrCat(types_.size()));
    }
    auto bpe = std::make_unique<Bpe>();
    for (size_t i = 0; i < tokens_.size(); ++i) {
      const std::string element = absl::StrCat(key, "[", i, "]");
      const std::string_view text = tokens_[i];
      if (ValidUtf8Prefix(text) != text.size()) return Expected(element, "UTF-8", "other bytes");
      if (text.empty()) continue;  // padding of the vocabulary
      AddedToken added;
      added.id = static_cast<int32_t>(i);
      added.content = std::string(text);
      switch (static_cast<TokenType>(types_[i])) {
        case TokenType::kUnknown:
        case TokenType::kControl: added.special = true; break;
        case TokenType::kUserDefined: break;
        case TokenType::kNormal:
        case TokenType::kUnused:
        case TokenType::kByte:
          Fail(element, bpe->AddToken(text, static_cast<int64_t>(i)));
          if (!status_.ok()) return;
          continue;
        default:
          return Expected(absl::StrCat(type_key, "[", i, "]"), "a type in 1..6",
                          absl::StrCat(types_[i]));
      }
      parts_.added.push_back(std::move(added));
    }
    bpe_ = std::move(bpe);
  }

  void ReadByteLevel() {
    const std::string key = "tokenizer.ggml.merges";
    const std::vector<std::string_view> merges = Value(file_.Strings(key));
    for (size_t i = 0; i < merges.size() && status_.ok(); ++i) {
      const std::string element = absl::StrCat(key, "[", i, "]");
      // Tokens of this alphabet have no blank in them, but one may be the merge's first character.
      const size_t space = merges[i].find(' ', 1);
      if (space == std::string_view::npos) {
        return Expected(element, "two tokens with one blank between them",
                        absl::StrCat("'", std::string(merges[i]), "'"));
      }
      Fail(element, bpe_->AddMerge(merges[i].substr(0, space), merges[i].substr(space + 1)));
    }
    Bpe::Options options;
    const std::string pre = Text("tokenizer.ggml.pre", "default");
    if (!status_.ok()) return;
    Fail("tokenizer.ggml.pre", MakeGgufPreTokenizer(pre, &parts_, &options, &add_bos_));
    bpe_->Finish(options);
    parts_.decoder.Add(TokenDecoder::ByteLevel{});
    parts_.model = std::move(bpe_);
  }

  // SentencePiece's BPE joins the two neighbours whose joined piece has the highest score: each
  // split of a piece in two pieces is a merge, ranked by the piece's score.
  void ReadSentencePiece() {
    const std::string key = "tokenizer.ggml.scores";
    const std::vector<float> scores = Value(file_.Floats(key));
    if (!status_.ok()) return;
    if (scores.size() != tokens_.size()) {
      return Expected(key, absl::StrCat(tokens_.size(), " scores"), absl::StrCat(scores.size()));
    }
    std::map<float, int32_t, std::greater<>> ranks;
    for (size_t i = 0; i < scores.size(); ++i) {
      if (!std::isfinite(scores[i])) {
        return Expected(absl::StrCat(key, "[", i, "]"), "a finite number", absl::StrCat(scores[i]));
      }
      ranks[scores[i]] = 0;
    }
    int32_t next_rank = 0;
    for (auto& [score, rank] : ranks) rank = next_rank++;
    for (size_t i = 0; i < tokens_.size() && status_.ok(); ++i) {
      if (IsPiece(i)) AddSplits(static_cast<int32_t>(i), ranks[scores[i]]);
    }
    if (!status_.ok()) return;
    Bpe::Options options;
    options.byte_fallback = true;
    options.fuse_unk = true;
    options.unk = TokenId("tokenizer.ggml.unknown_token_id");
    bpe_->Finish(options);
    parts_.model = std::move(bpe_);
    add_bos_ = true;

    absl::StatusOr<std::unique_ptr<Pattern>> blank = Pattern::Literal(" ");
    if (!blank.ok()) return Fail("tokenizer.ggml.model", blank.status());
    if (Flag("tokenizer.ggml.add_space_prefix", true)) {
      parts_.normalizer.Add(PrependNormalizer{kBlank});
      parts_.decoder.StripLeadingSpace();
    }
    parts_.normalizer.Add(ReplaceNormalizer{*std::move(blank), kBlank});
    parts_.decoder.Add(TokenDecoder::Replace{kBlank, " "});
    parts_.decoder.Add(TokenDecoder::ByteFallback{});
  }

  // Whether text may be merged into token `i`.
  bool IsPiece(size_t i) const {
    const auto type = static_cast<TokenType>(types_[i]);
    return (type == TokenType::kNormal || type == TokenType::kUnused) && !tokens_[i].empty();
  }
  std::optional<int32_t> FindPiece(std::string_view text) const {
    const std::optional<int32_t> id = bpe_->Find(text);
    return id && IsPiece(*id) ? id : std::nullopt;
  }
  void AddSplits(int32_t id, int32_t rank) {
    const std::string_view piece = tokens_[id];
    if (piece.size() > kMaxPieceBytes) {
      return Expected(absl::StrCat("tokenizer.ggml.tokens[", id, "]"),
                      absl::StrCat("at most ", kMaxPieceBytes, " bytes"),
                      absl::StrCat(piece.size()));
    }
    for (size_t at = Utf8Length(static_cast<unsigned char>(piece[0])); at < piece.size();
         at += Utf8Length(static_cast<unsigned char>(piece[at]))) {
      const auto left = FindPiece(piece.substr(0, at)), right = FindPiece(piece.substr(at));
      if (left && right) bpe_->AddMerge(*left, *right, id, rank);
    }
  }

  void ReadSpecial() {
    const auto add_eos = [&](std::optional<int32_t> id) {
      if (id && std::find(parts_.eos.begin(), parts_.eos.end(), *id) == parts_.eos.end()) {
        parts_.eos.push_back(*id);
      }
    };
    parts_.bos = TokenId("tokenizer.ggml.bos_token_id");
    const std::optional<int32_t> eos = TokenId("tokenizer.ggml.eos_token_id");
    add_eos(eos);
    add_eos(TokenId("tokenizer.ggml.eot_token_id"));
    add_eos(TokenId("tokenizer.ggml.eom_token_id"));
    // Files from before eot_token_id name the end of a turn by its text alone.
    for (const AddedToken& token : parts_.added) {
      if (token.special && (token.content == "<|im_end|>" || token.content == "<|eot_id|>")) {
        add_eos(token.id);
      }
    }
    if (Flag("tokenizer.ggml.add_bos_token", add_bos_) && parts_.bos) parts_.prefix = {*parts_.bos};
    if (Flag("tokenizer.ggml.add_eos_token", false) && eos) parts_.suffix = {*eos};
    parts_.chat_template = Text("tokenizer.chat_template", "");
  }

  const GgufFile& file_;
  absl::Status status_;
  TokenizerParts parts_;
  std::vector<std::string_view> tokens_;
  std::vector<int64_t> types_;
  std::unique_ptr<Bpe> bpe_;
  bool add_bos_ = false;
};

}  // namespace

absl::StatusOr<TokenizerParts> ParseGgufTokenizer(const GgufFile& file) {
  return Reader(file).Run();
}

}  // namespace latchd
