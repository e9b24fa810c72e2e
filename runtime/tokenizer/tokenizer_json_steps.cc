#include "runtime/tokenizer/tokenizer_json_steps.h"

#include "absl/strings/str_cat.h"
#include "runtime/tokenizer/utf8.h"

namespace latchd {
namespace {

// {"String": "..."} or {"Regex": "..."}.
std::unique_ptr<Pattern> ReadPattern(const JsonNode& node) {
  const bool literal = node["String"].present();
  const JsonNode text = node[literal ? "String" : "Regex"];
  if (!literal && !text.present()) {
    node.Expected("an object with String or Regex");
    return nullptr;
  }
  const std::string source = text.String();
  absl::StatusOr<std::unique_ptr<Pattern>> pattern =
      literal ? Pattern::Literal(source) : Pattern::Compile(source);
  if (!pattern.ok()) {
    text.Fail(pattern.status());
    return nullptr;
  }
  return *std::move(pattern);
}

// A pattern of our own, which compiles.
std::unique_ptr<Pattern> Known(const JsonNode& node, const std::string& regex) {
  absl::StatusOr<std::unique_ptr<Pattern>> pattern = Pattern::Compile(regex);
  if (pattern.ok()) return *std::move(pattern);
  node.Fail(pattern.status());
  return nullptr;
}

SplitBehavior ReadBehavior(const JsonNode& node) {
  const std::string name = node.String();
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  if (name != "Isolated") {
    node.Expected("Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
  }
  return SplitBehavior::kIsolated;
}

// One character, as a string.
std::string ReadCharacter(const JsonNode& node) {
  std::string text = node.String();
  if (text.empty() || Utf8Length(static_cast<unsigned char>(text[0])) != text.size()) {
    node.Expected("one character");
  }
  return text;
}

MetaspaceStep::Prepend ReadPrepend(const JsonNode& node) {
  using Prepend = MetaspaceStep::Prepend;
  const JsonNode scheme = node["prepend_scheme"];
  if (!scheme.present()) {  // files from before 2024
    return node["add_prefix_space"].Bool(true) ? Prepend::kAlways : Prepend::kNever;
  }
  const std::string name = scheme.String();
  if (name == "never") return Prepend::kNever;
  if (name == "first") return Prepend::kFirst;
  if (name != "always") scheme.Expected("never, first or always");
  return Prepend::kAlways;
}

void ReadNormalizerStep(const JsonNode& node, Normalizer* out) {
  const std::string type = node["type"].String();
  if (type == "NFC") {
    out->Add(UnicodeForm::kNfc);
  } else if (type == "NFD") {
    out->Add(UnicodeForm::kNfd);
  } else if (type == "NFKC") {
    out->Add(UnicodeForm::kNfkc);
  } else if (type == "NFKD") {
    out->Add(UnicodeForm::kNfkd);
  } else if (type == "Prepend") {
    out->Add(PrependNormalizer{node["prepend"].String()});
  } else if (type == "Strip") {
    out->Add(StripNormalizer{node["strip_left"].Bool(true), node["strip_right"].Bool(true)});
  } else if (type == "Replace") {
    ReplaceNormalizer step{ReadPattern(node["pattern"]), node["content"].String()};
    if (step.pattern != nullptr) out->Add(std::move(step));
  } else {
    node.Unsupported(absl::StrCat("the normalizer ", type));
  }
}

void ReadPreTokenizerStep(const JsonNode& node, PreTokenizer* out) {
  const std::string type = node["type"].String();
  if (type == "Split") {
    SplitStep step{ReadPattern(node["pattern"]), ReadBehavior(node["behavior"]),
                   node["invert"].Bool(false)};
    if (step.pattern != nullptr) out->Add(std::move(step));
  } else if (type == "Digits") {
    const bool each = node["individual_digits"].Bool(false);
    SplitStep step{Known(node, R"(\p{N})"),
                   each ? SplitBehavior::kIsolated : SplitBehavior::kContiguous, false};
    if (step.pattern != nullptr) out->Add(std::move(step));
  } else if (type == "ByteLevel") {
    ByteLevelStep step;
    step.add_prefix_space = node["add_prefix_space"].Bool(true);
    if (node["use_regex"].Bool(true)) step.pattern = Known(node, kGpt2Pattern);
    out->Add(std::move(step));
  } else if (type == "Metaspace") {
    MetaspaceStep step;
    step.replacement = ReadCharacter(node["replacement"]);
    step.prepend = ReadPrepend(node);
    if (node["split"].Bool(true)) {
      absl::StatusOr<std::unique_ptr<Pattern>> split = Pattern::Literal(step.replacement);
      if (!split.ok()) return node.Fail(split.status());
      step.split = *std::move(split);
    }
    out->Add(std::move(step));
  } else {
    node.Unsupported(absl::StrCat("the pre-tokenizer ", type));
  }
}

// Steps before Fuse work on each token; Strip after it works on the whole text, of which only its
// beginning can be changed while text is streamed.
void ReadDecoderStep(const JsonNode& node, bool* fused, TokenDecoder* out) {
  const std::string type = node["type"].String();
  if (type == "Fuse") {
    *fused = true;
  } else if (type == "Strip") {
    const bool leading = *fused && node["content"].String() == " " &&
                         node["start"].Int(0, INT32_MAX) == 1 &&
                         node["stop"].Int(0, INT32_MAX) == 0;
    if (!leading) return node.Unsupported("Strip other than one leading blank after Fuse");
    out->StripLeadingSpace();
  } else if (*fused) {
    node.Unsupported(absl::StrCat("the decoder ", type, " after Fuse"));
  } else if (type == "ByteLevel") {
    out->Add(TokenDecoder::ByteLevel{});
  } else if (type == "ByteFallback") {
    out->Add(TokenDecoder::ByteFallback{});
  } else if (type == "Replace") {
    const JsonNode from = node["pattern"]["String"];
    if (!from.present()) return node["pattern"].Unsupported("a pattern other than String");
    const std::string text = from.String();
    if (text.empty()) return from.Expected("text that is not empty");
    out->Add(TokenDecoder::Replace{text, node["content"].String()});
  } else if (type == "Metaspace") {
    out->Add(TokenDecoder::Replace{ReadCharacter(node["replacement"]), " "});
    if (ReadPrepend(node) != MetaspaceStep::Prepend::kNever) out->StripLeadingSpace();
  } else {
    node.Unsupported(absl::StrCat("the decoder ", type));
  }
}

}  // namespace

void ReadNormalizer(const JsonNode& node, Normalizer* out) {
  if (!node.present()) return;
  ForEachStep(node, "normalizers", [&](const JsonNode& step) { ReadNormalizerStep(step, out); });
}

void ReadPreTokenizer(const JsonNode& node, PreTokenizer* out) {
  if (!node.present()) return;
  ForEachStep(node, "pretokenizers",
              [&](const JsonNode& step) { ReadPreTokenizerStep(step, out); });
}

void ReadDecoder(const JsonNode& node, TokenDecoder* out) {
  // Without a decoder, tokens would be joined by blanks: no model that we serve means that.
  if (!node.present()) return node.Expected("a decoder");
  bool fused = false;
  ForEachStep(node, "decoders", [&](const JsonNode& step) { ReadDecoderStep(step, &fused, out); });
}

}  // namespace latchd
