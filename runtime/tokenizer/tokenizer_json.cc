#include "absl/strings/str_cat.h"
#include "runtime/tokenizer/bpe.h"
#include "runtime/tokenizer/json_node.h"
#include "runtime/tokenizer/text_tokenizer.h"
#include "runtime/tokenizer/tokenizer_json_steps.h"

// The format of the `tokenizers` package (huggingface/tokenizers, tokenizer/serialization.rs), with
// a BPE model. Truncation and padding sections are about training batches and are not applied.

namespace latchd {
namespace {

void ReadVocab(const JsonNode& node, Bpe* bpe) {
  const nlohmann::json* vocab = node.Object();
  if (vocab == nullptr) return;
  for (const auto& [token, id] : vocab->items()) {
    if (!id.is_number_integer()) return node[token].Expected("an integer id");
    absl::Status status = bpe->AddToken(token, node[token].Int(0, kMaxVocab - 1));
    if (!status.ok()) return node.Fail(status);
  }
  if (vocab->empty()) node.Expected("at least one token");
}

// "a b", or ["a", "b"] in files from 2024 on.
void ReadMerges(const JsonNode& node, Bpe* bpe) {
  for (const JsonNode& merge : node.Array()) {
    std::string left, right;
    if (merge.is_array()) {
      const std::vector<JsonNode> pair = merge.Array();
      if (pair.size() != 2) return merge.Expected("two tokens");
      left = pair[0].String();
      right = pair[1].String();
    } else {
      const std::string text = merge.String();
      const size_t space = text.find(' ');
      if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
        return merge.Expected("two tokens with one blank between them");
      }
      left = text.substr(0, space);
      right = text.substr(space + 1);
    }
    absl::Status status = bpe->AddMerge(left, right);
    if (!status.ok()) return merge.Fail(status);
  }
}

std::unique_ptr<Bpe> ReadModel(const JsonNode& node) {
  auto bpe = std::make_unique<Bpe>();
  const std::string type = node["type"].String("BPE");  // old files do not say
  if (type != "BPE") {
    node["type"].Unsupported(absl::StrCat("the model ", type));
    return bpe;
  }
  // Each of these changes ids, so each is refused rather than ignored.
  if (!node["continuing_subword_prefix"].String("").empty()) {
    node["continuing_subword_prefix"].Unsupported("a prefix");
  }
  if (!node["end_of_word_suffix"].String("").empty()) {
    node["end_of_word_suffix"].Unsupported("a suffix");
  }
  ReadVocab(node["vocab"], bpe.get());
  ReadMerges(node["merges"], bpe.get());
  Bpe::Options options;
  options.byte_fallback = node["byte_fallback"].Bool(false);
  options.ignore_merges = node["ignore_merges"].Bool(false);
  options.fuse_unk = node["fuse_unk"].Bool(false);
  if (node["unk_token"].present()) {
    const std::string unk = node["unk_token"].String();
    options.unk = bpe->Find(unk);
    if (!options.unk) node["unk_token"].Expected("a token of the vocabulary");
  }
  bpe->Finish(options);
  return bpe;
}

void ReadAddedTokens(const JsonNode& node, std::vector<AddedToken>* out) {
  if (!node.present()) return;
  for (const JsonNode& item : node.Array()) {
    AddedToken token;
    token.id = static_cast<int32_t>(item["id"].Int(0, kMaxVocab - 1));
    token.content = item["content"].String();
    token.special = item["special"].Bool(false);
    token.lstrip = item["lstrip"].Bool(false);
    token.rstrip = item["rstrip"].Bool(false);
    token.single_word = item["single_word"].Bool(false);
    token.normalized = item["normalized"].Bool(!token.special);
    if (token.content.empty()) item["content"].Expected("text that is not empty");
    out->push_back(std::move(token));
  }
}

// Appends the ids of a template's special token.
void ReadTemplateToken(const JsonNode& processor, const JsonNode& use, std::vector<int32_t>* out) {
  const std::string name = use["id"].String();
  const JsonNode token = processor["special_tokens"][name];
  if (!token.present()) return use["id"].Expected("a name of special_tokens");
  for (const JsonNode& id : token["ids"].Array()) {
    out->push_back(static_cast<int32_t>(id.Int(0, kMaxVocab - 1)));
  }
}

void ReadPostProcessor(const JsonNode& node, TokenizerParts* parts) {
  if (!node.present()) return;
  ForEachStep(node, "processors", [&](const JsonNode& step) {
    const std::string type = step["type"].String();
    if (type == "ByteLevel") return;  // changes offsets only
    if (type != "TemplateProcessing") {
      return step.Unsupported(absl::StrCat("the post-processor ", type));
    }
    std::vector<int32_t> before, after;
    int sequences = 0;
    for (const JsonNode& piece : step["single"].Array()) {
      if (piece["SpecialToken"].present()) {
        ReadTemplateToken(step, piece["SpecialToken"], sequences == 0 ? &before : &after);
      } else if (piece["Sequence"].present()) {
        ++sequences;
      } else {
        piece.Expected("SpecialToken or Sequence");
      }
    }
    if (sequences != 1) step["single"].Expected("exactly one Sequence");
    // A later processor wraps what an earlier one made.
    parts->prefix.insert(parts->prefix.begin(), before.begin(), before.end());
    parts->suffix.insert(parts->suffix.end(), after.begin(), after.end());
  });
}

}  // namespace

absl::StatusOr<TokenizerParts> ParseTokenizerJson(const std::string& name, std::string_view json) {
  JsonDocument document(name, json);
  const JsonNode root(document);
  TokenizerParts parts;
  if (document.status().ok()) {
    if (!root["model"].is_object()) root["model"].Expected("an object");
    ReadAddedTokens(root["added_tokens"], &parts.added);
    ReadNormalizer(root["normalizer"], &parts.normalizer);
    ReadPreTokenizer(root["pre_tokenizer"], &parts.pre_tokenizer);
    parts.model = ReadModel(root["model"]);
    ReadPostProcessor(root["post_processor"], &parts);
    ReadDecoder(root["decoder"], &parts.decoder);
  }
  if (!document.status().ok()) return document.status();
  return parts;
}

}  // namespace latchd
