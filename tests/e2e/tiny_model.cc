#include "tests/e2e/tiny_model.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/support/model_files.h"

namespace latchd::e2e {
namespace {

using Json = nlohmann::json;

std::string Utf8(int code_point) {
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xC0 | (code_point >> 6)),
          static_cast<char>(0x80 | (code_point & 0x3F))};
}

// The printable stand-in that byte-level BPE writes for a byte (GPT-2's bytes_to_unicode).
std::string ByteToken(int byte, int& next_unprintable) {
  const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) ||
                         (byte >= 0xAE && byte <= 0xFF);
  return Utf8(printable ? byte : 256 + next_unprintable++);
}

Json Special(int32_t id, const std::string& content) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

Json TokenizerJson() {
  Json vocab = Json::object();
  int next_unprintable = 0;
  for (int byte = 0; byte < 256; ++byte) vocab[ByteToken(byte, next_unprintable)] = byte;
  Json added = Json::array({Special(kEos, "<|endoftext|>"), Special(kImStart, "<|im_start|>"),
                            Special(kImEnd, "<|im_end|>")});
  for (int32_t id = kImEnd + 1; id < kVocab; ++id) {
    added.push_back(Special(id, "<|extra_" + std::to_string(id) + "|>"));
  }
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "ByteLevel"},
            {"add_prefix_space", false},
            {"trim_offsets", true},
            {"use_regex", true}}},
          {"post_processor", nullptr},
          {"decoder",
           {{"type", "ByteLevel"},
            {"add_prefix_space", true},
            {"trim_offsets", true},
            {"use_regex", true}}},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"vocab", vocab},
            {"merges", Json::array()}}}};
}

Json TokenizerConfigJson() {
  return {{"tokenizer_class", "GPT2Tokenizer"},
          {"eos_token", "<|endoftext|>"},
          {"bos_token", nullptr},
          {"chat_template",
           "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
           "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
           "{{ '<|im_start|>assistant\n' }}{% endif %}"}};
}

}  // namespace

void WriteTinyModel(const std::string& folder, uint64_t seed) {
  std::filesystem::create_directories(folder);
  ModelConfig config = testing::TinyConfig("LlamaForCausalLM");
  config.vocab = kVocab;
  config.context_tokens = kContextTokens;
  config.bos_token.reset();
  config.eos_tokens = {kEos};
  testing::MakeTinyModel(folder, config, seed);
  testing::WriteFile(folder + "/tokenizer.json", TokenizerJson().dump());
  testing::WriteFile(folder + "/tokenizer_config.json", TokenizerConfigJson().dump());
}

}  // namespace latchd::e2e
