#include "absl/strings/str_cat.h"
#include "runtime/tokenizer/bpe.h"
#include "runtime/tokenizer/sentencepiece_bridge.h"
#include "runtime/tokenizer/text_tokenizer.h"

namespace latchd {
namespace {

constexpr char kBlank[] = "\xE2\x96\x81";  // U+2581

// A tokenizer.model, encoded by the SentencePiece library itself (BPE or Unigram, with the
// normalization that the file holds).
class SentencePieceModel final : public SubwordModel {
 public:
  absl::Status Load(const std::string& path) {
    const std::string error = library_.Load(path);
    if (!error.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": expected a SentencePiece model, got: ", error));
    }
    const int size = library_.size();
    if (size <= 0 || size > kMaxVocab) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": pieces: expected 1..", kMaxVocab, ", got ", size));
    }
    for (int id = 0; id < size; ++id) tokens_.push_back(library_.Piece(id));
    return absl::OkStatus();
  }

  absl::Status Encode(std::string_view word, std::vector<int32_t>* ids) const override {
    std::vector<int> found;
    const std::string error = library_.Encode(word, &found);
    if (!error.empty()) return absl::InternalError(absl::StrCat("SentencePiece: ", error));
    ids->insert(ids->end(), found.begin(), found.end());
    return absl::OkStatus();
  }
  int32_t size() const override { return static_cast<int32_t>(tokens_.size()); }
  const std::string& token(int32_t id) const override { return tokens_[id]; }

  const SentencePieceBridge& library() const { return library_; }

 private:
  SentencePieceBridge library_;
  std::vector<std::string> tokens_;
};

}  // namespace

absl::StatusOr<TokenizerParts> LoadSentencePiece(const std::string& path) {
  auto model = std::make_unique<SentencePieceModel>();
  absl::Status status = model->Load(path);
  if (!status.ok()) return status;
  const SentencePieceBridge& library = model->library();
  TokenizerParts parts;
  // Control tokens are not found in text by the library, and must be when a chat is encoded.
  for (int32_t id = 0; id < model->size(); ++id) {
    if (!library.IsControlOrUnknown(id)) continue;
    if (model->token(id).empty()) continue;
    AddedToken token;
    token.id = id;
    token.content = model->token(id);
    token.special = true;
    parts.added.push_back(std::move(token));
  }
  if (library.bos_id() >= 0) {
    parts.bos = library.bos_id();
    parts.prefix = {library.bos_id()};
  }
  if (library.eos_id() >= 0) parts.eos = {library.eos_id()};
  parts.decoder.Add(TokenDecoder::Replace{kBlank, " "});
  parts.decoder.Add(TokenDecoder::ByteFallback{});
  // The library does not say whether it adds a blank before the text; a probe does.
  std::vector<int> probe;
  if (library.Encode("a", &probe).empty() && !probe.empty() &&
      model->token(probe[0]).rfind(kBlank, 0) == 0) {
    parts.decoder.StripLeadingSpace();
  }
  parts.model = std::move(model);
  return parts;
}

}  // namespace latchd
