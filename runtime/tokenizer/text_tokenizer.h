#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/tokenizer/added_tokens.h"
#include "runtime/tokenizer/normalizer.h"
#include "runtime/tokenizer/pre_tokenizer.h"
#include "runtime/tokenizer/subword_model.h"
#include "runtime/tokenizer/token_decoder.h"
#include "runtime/tokenizer/tokenizer.h"

namespace latchd {

class GgufFile;

// Everything a tokenizer is made of, as the loaders fill it in. Encoding runs top to bottom.
struct TokenizerParts {
  std::vector<AddedToken> added;  // found first; ids distinct
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::unique_ptr<SubwordModel> model;  // never null
  std::vector<int32_t> prefix, suffix;  // around the ids, with add_special_tokens
  TokenDecoder decoder;
  std::optional<int32_t> bos;
  std::vector<int32_t> eos;
  std::string chat_template;
};

// INVALID_ARGUMENT when an added token contradicts the vocabulary (the same id for another text, or
// another id for the same text), or an id of `parts` is no token.
absl::StatusOr<std::unique_ptr<Tokenizer>> BuildTokenizer(TokenizerParts parts);

// The loaders; errors as LoadTokenizer's. `name` stands for the file in errors.
absl::StatusOr<TokenizerParts> ParseTokenizerJson(const std::string& name, std::string_view json);
absl::StatusOr<TokenizerParts> ParseGgufTokenizer(const GgufFile& file);

}  // namespace latchd
