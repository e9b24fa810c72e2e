#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "runtime/tokenizer/pre_tokenizer.h"
#include "runtime/tokenizer/text_tokenizer.h"

namespace latchd {

// A GPT-2 style tokenizer.json over the whole byte alphabet (token of byte b: id b), with a few
// merges, for tests to change before they load it.
inline nlohmann::json ByteLevelJson() {
  nlohmann::json vocab = nlohmann::json::object();
  for (int b = 0; b < 256; ++b) vocab[ByteLevelCharacter(static_cast<unsigned char>(b))] = b;
  for (const char* token : {"ab", "abc", "aa", "aaaa", "\u0120a"}) vocab[token] = vocab.size();
  return {{"added_tokens",
           {{{"id", 261}, {"content", "<s>"}, {"special", true}},
            {{"id", 262}, {"content", "<s>>"}, {"special", false}, {"normalized", false}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model",
           {{"type", "BPE"},
            {"vocab", vocab},
            {"merges", {"a b", "ab c", nlohmann::json::array({"a", "a"}), "aa aa", "\u0120 a"}}}}};
}

// SentencePiece style: U+2581 for blanks, "<0xNN>" for bytes (ids 3 + byte).
inline nlohmann::json SentencePieceJson() {
  nlohmann::json vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (int b = 0; b < 256; ++b) {
    char name[8];
    snprintf(name, sizeof name, "<0x%02X>", b);
    vocab[name] = 3 + b;
  }
  for (const char* token : {"\u2581", "h", "i", "hi", "\u2581hi"}) vocab[token] = vocab.size();
  const auto step = [](const char* type) { return nlohmann::json{{"type", type}}; };
  return {{"added_tokens",
           {{{"id", 1}, {"content", "<s>"}, {"special", true}},
            {{"id", 2}, {"content", "</s>"}, {"special", true}}}},
          {"normalizer",
           {{"type", "Sequence"},
            {"normalizers",
             {{{"type", "Prepend"}, {"prepend", "\u2581"}},
              {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}}}}}},
          {"pre_tokenizer", nullptr},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single", {{{"SpecialToken", {{"id", "<s>"}}}}, {{"Sequence", {{"id", "A"}}}}}},
            {"special_tokens", {{"<s>", {{"ids", {1}}}}}}}},
          {"decoder",
           {{"type", "Sequence"},
            {"decoders",
             {{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
              step("ByteFallback"),
              step("Fuse"),
              {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
          {"model",
           {{"type", "BPE"},
            {"byte_fallback", true},
            {"unk_token", "<unk>"},
            {"vocab", vocab},
            {"merges", {"h i", "\u2581 hi"}}}}};
}

inline absl::StatusOr<std::unique_ptr<Tokenizer>> Build(const nlohmann::json& json) {
  absl::StatusOr<TokenizerParts> parts = ParseTokenizerJson("tokenizer.json", json.dump());
  if (!parts.ok()) return parts.status();
  return BuildTokenizer(*std::move(parts));
}

}  // namespace latchd
