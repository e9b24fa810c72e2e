#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/model/gguf.h"
#include "runtime/tokenizer/bpe.h"
#include "runtime/tokenizer/json_node.h"
#include "runtime/tokenizer/text_tokenizer.h"
#include "runtime/tokenizer/tokenizer.h"

namespace latchd {
namespace {

namespace fs = std::filesystem;

constexpr uintmax_t kMaxFileBytes = uintmax_t{256} << 20;

bool Exists(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

absl::StatusOr<std::string> ReadFile(const fs::path& path) {
  std::error_code error;
  const uintmax_t size = fs::file_size(path, error);
  std::ifstream in(path, std::ios::binary);
  if (error || !in) {
    return absl::InvalidArgumentError(absl::StrCat(path.string(), ": cannot be read"));
  }
  if (size > kMaxFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path.string(), ": expected at most ", kMaxFileBytes, " bytes, got ", size));
  }
  std::string text(size, '\0');
  in.read(text.data(), static_cast<std::streamsize>(size));
  text.resize(static_cast<size_t>(in.gcount()));
  return text;
}

// The id of a token as the vocabulary or the added tokens spell it.
std::optional<int32_t> FindToken(const TokenizerParts& parts, const std::string& text) {
  for (const AddedToken& token : parts.added) {
    if (token.content == text) return token.id;
  }
  for (int32_t id = 0; id < parts.model->size(); ++id) {
    if (parts.model->token(id) == text) return id;
  }
  return std::nullopt;
}

// "<s>" or {"content": "<s>", ...}.
std::optional<int32_t> ReadTokenName(const JsonNode& node, const TokenizerParts& parts) {
  if (!node.present()) return std::nullopt;
  const std::string name = node.is_object() ? node["content"].String() : node.String();
  const std::optional<int32_t> id = FindToken(parts, name);
  if (!id) node.Expected("a token of the vocabulary");
  return id;
}

// A template, or a list of named ones, of which "default" is taken.
void ReadChatTemplate(const JsonNode& node, TokenizerParts* parts) {
  if (!node.present()) return;
  if (!node.is_array()) {
    parts->chat_template = node.String();
    return;
  }
  for (const JsonNode& item : node.Array()) {
    if (item["name"].String() == "default") parts->chat_template = item["template"].String();
  }
}

void ReadTokenizerConfig(JsonDocument& document, TokenizerParts* parts) {
  const JsonNode root(document);
  if (root.Object() == nullptr) return;
  ReadChatTemplate(root["chat_template"], parts);
  parts->bos = ReadTokenName(root["bos_token"], *parts);
  const std::optional<int32_t> eos = ReadTokenName(root["eos_token"], *parts);
  if (eos) parts->eos = {*eos};
  // transformers' Llama class rebuilds the post-processor from these two flags; for other classes
  // they only matter where tokenizer.json has no template.
  const bool llama = absl::StartsWith(root["tokenizer_class"].String(""), "LlamaTokenizer");
  const bool bare = parts->prefix.empty() && parts->suffix.empty();
  if (root["add_bos_token"].present() && (llama || bare)) {
    const bool add = root["add_bos_token"].Bool(false);
    parts->prefix.clear();
    if (add && parts->bos) parts->prefix = {*parts->bos};
  }
  if (root["add_eos_token"].present() && (llama || bare)) {
    const bool add = root["add_eos_token"].Bool(false);
    parts->suffix.clear();
    if (add && eos) parts->suffix = {*eos};
  }
}

// generation_config.json lists every token that ends an answer, e.g. Llama 3's <|eot_id|>.
void ReadGenerationConfig(JsonDocument& document, TokenizerParts* parts) {
  const JsonNode eos = JsonNode(document)["eos_token_id"];
  if (!eos.present()) return;
  const std::vector<JsonNode> ids = eos.is_array() ? eos.Array() : std::vector<JsonNode>{eos};
  for (const JsonNode& node : ids) {
    const auto id = static_cast<int32_t>(node.Int(0, kMaxVocab - 1));
    if (std::find(parts->eos.begin(), parts->eos.end(), id) == parts->eos.end()) {
      parts->eos.push_back(id);
    }
  }
}

// Reads `folder`/`name`, when it exists, with `read`.
template <typename Read>
absl::Status ReadOptional(const fs::path& folder, const char* name, const Read& read,
                          TokenizerParts* parts) {
  const fs::path path = folder / name;
  if (!Exists(path)) return absl::OkStatus();
  absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return text.status();
  JsonDocument document(path.string(), *text);
  if (document.status().ok()) read(document, parts);
  return document.status();
}

absl::StatusOr<TokenizerParts> LoadFolder(const fs::path& folder) {
  const fs::path json = folder / "tokenizer.json", model = folder / "tokenizer.model";
  absl::StatusOr<TokenizerParts> parts =
      absl::NotFoundError(absl::StrCat(folder.string(), ": no tokenizer.json"));
  if (Exists(json)) {
    absl::StatusOr<std::string> text = ReadFile(json);
    if (!text.ok()) return text.status();
    parts = ParseTokenizerJson(json.string(), *text);
  } else if (Exists(model)) {
    return absl::UnimplementedError(
        absl::StrCat(model.string(),
                     ": expected a tokenizer.json beside it: convert the tokenizer "
                     "(transformers' save_pretrained writes one) or use a GGUF file"));
  }
  if (!parts.ok()) return parts;
  absl::Status status = ReadOptional(folder, "tokenizer_config.json", ReadTokenizerConfig, &*parts);
  if (status.ok()) {
    status = ReadOptional(folder, "generation_config.json", ReadGenerationConfig, &*parts);
  }
  if (!status.ok()) return status;
  const fs::path chat = folder / "chat_template.jinja";
  if (Exists(chat)) {
    absl::StatusOr<std::string> text = ReadFile(chat);
    if (!text.ok()) return text.status();
    parts->chat_template = *std::move(text);
  }
  return parts;
}

absl::StatusOr<TokenizerParts> LoadGguf(const std::string& path) {
  absl::StatusOr<std::unique_ptr<GgufFile>> file = GgufFile::Open(path);
  if (!file.ok()) return file.status();
  if ((*file)->Find("tokenizer.ggml.model") == nullptr) {
    return absl::NotFoundError(absl::StrCat(path, ": no tokenizer.ggml.model"));
  }
  return ParseGgufTokenizer(**file);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& model_path) {
  std::error_code error;
  absl::StatusOr<TokenizerParts> parts =
      fs::is_directory(model_path, error) ? LoadFolder(model_path) : LoadGguf(model_path);
  if (!parts.ok()) return parts.status();
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = BuildTokenizer(*std::move(parts));
  if (tokenizer.ok()) return tokenizer;
  return absl::Status(tokenizer.status().code(),
                      absl::StrCat(model_path, ": ", std::string(tokenizer.status().message())));
}

}  // namespace latchd
