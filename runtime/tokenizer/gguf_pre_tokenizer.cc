#include "runtime/tokenizer/gguf_pre_tokenizer.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"

namespace latchd {
namespace {

constexpr char kLlama3Pattern[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kQwen2Pattern[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kTekkenPattern[] =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct Kind {
  std::vector<std::string_view> names;
  std::vector<const char*> patterns;  // applied one after the other
  bool nfc = false;
  bool ignore_merges = false;
  bool add_bos = false;
};

// Names and patterns of llama.cpp's llama-vocab.cpp; where it differs from the model's own
// tokenizer.json (Qwen2 normalizes to NFC), the latter is followed.
const std::vector<Kind>& Kinds() {
  static const auto* const kinds = new std::vector<Kind>{
      {{"gpt-2", "gpt2", "phi-2", "olmo", "roberta-bpe", "jina-es", "jina-de", "jina-v2-es",
        "jina-v2-de", "gigachat", "mpt", "jais", "trillion", "a.x-4.0", "mellum"},
       {kGpt2Pattern}},
      {{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"},
       {kLlama3Pattern},
       false,
       true,
       true},
      {{"dbrx", "smaug-bpe"}, {kLlama3Pattern}},
      {{"qwen2", "deepseek-r1-qwen", "megrez"}, {kQwen2Pattern}, true},
      {{"stablelm2"}, {kQwen2Pattern}},
      {{"tekken"}, {kTekkenPattern}, false, true, true},
      {{"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"},
       {R"(\p{N})", kGpt2Pattern}},
      {{"default"}, {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2Pattern, R"(\p{N}+)", R"([0-9][0-9][0-9])"}},
  };
  return *kinds;
}

}  // namespace

absl::Status MakeGgufPreTokenizer(const std::string& name, TokenizerParts* parts,
                                  Bpe::Options* options, bool* add_bos) {
  for (const Kind& kind : Kinds()) {
    if (std::find(kind.names.begin(), kind.names.end(), name) == kind.names.end()) continue;
    for (const char* regex : kind.patterns) {
      absl::StatusOr<std::unique_ptr<Pattern>> pattern = Pattern::Compile(regex);
      if (!pattern.ok()) return pattern.status();
      parts->pre_tokenizer.Add(SplitStep{*std::move(pattern), SplitBehavior::kIsolated, false});
    }
    parts->pre_tokenizer.Add(ByteLevelStep{});
    if (kind.nfc) parts->normalizer.Add(UnicodeForm::kNfc);
    options->ignore_merges = kind.ignore_merges;
    *add_bos = kind.add_bos;
    return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrCat("the pre-tokenizer ", name, " is not supported"));
}

}  // namespace latchd
