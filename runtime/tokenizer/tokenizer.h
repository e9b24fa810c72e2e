#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace latchd {

struct EncodeOptions {
  bool add_special_tokens = true;  // BOS etc., as the model's tokenizer says
  bool parse_special_tokens =
      true;  // recognise "<|im_end|>" etc. in the text; false: treat them as plain text
};

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

// Text to token ids and back. Immutable and thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // INVALID_ARGUMENT for invalid UTF-8 (with the byte offset).
  virtual absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text,
                                                      const EncodeOptions& options) const = 0;
  // INVALID_ARGUMENT for an id outside the vocabulary. Special tokens are left out when
  // skip_special.
  virtual absl::StatusOr<std::string> Decode(const std::vector<int32_t>& ids,
                                             bool skip_special) const = 0;
  // The bytes one token stands for: possibly a part of a UTF-8 character. Empty for an unknown id.
  virtual std::string TokenBytes(int32_t id) const = 0;
  virtual bool IsSpecial(int32_t id) const = 0;
  virtual std::optional<int32_t> TokenToId(std::string_view token) const = 0;
  virtual int32_t vocab_size() const = 0;
  virtual std::optional<int32_t> bos_token() const = 0;
  virtual std::vector<int32_t> eos_tokens() const = 0;
  // The model's chat template (Jinja source) or empty.
  virtual const std::string& chat_template() const = 0;
  // SentencePiece-style: one blank at the very start of decoded text is not part of it.
  virtual bool strips_leading_space() const { return false; }
};

// From a Hugging Face folder (tokenizer.json, tokenizer_config.json) or a GGUF file's metadata.
// NOT_FOUND when the model has none (a daemon then serves token ids only).
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& model_path);

// Streams text out of token ids: never emits half a UTF-8 character. One per generation; not
// thread-safe.
class StreamingDetokenizer {
 public:
  StreamingDetokenizer(const Tokenizer& tokenizer, bool skip_special);
  // The text that became certain with this token; may be empty.
  std::string Push(int32_t id);
  // What is left at the end; incomplete bytes become U+FFFD.
  std::string Finish();

 private:
  std::string Take(bool at_end);

  const Tokenizer& tokenizer_;
  bool skip_special_;
  bool at_start_ = true;
  std::string pending_;
};

// Renders messages in the format the tokenizer's template names (ChatML, Llama 3, Llama 2 / Mistral
// [INST]), with the opening of the assistant's turn at the end. The template's default system
// prompt (ChatML) is used when the first message is not the system's. BOS is part of the text where
// the template writes it, so encode with add_special_tokens = false. INVALID_ARGUMENT: no messages,
// an unknown role, or ([INST]) turns that do not alternate. UNIMPLEMENTED, saying what was found,
// for another format.
absl::StatusOr<std::string> ApplyChatTemplate(const Tokenizer& tokenizer,
                                              const std::vector<ChatMessage>& messages);

}  // namespace latchd
