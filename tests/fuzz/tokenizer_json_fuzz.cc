// tokenizer.json from memory: it is loaded or refused, and whatever was loaded encodes and decodes
// any text. The input's last 64 bytes also serve as text.

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "runtime/tokenizer/text_tokenizer.h"

namespace {

void Check(bool condition) {
  if (!condition) std::abort();
}

void Exercise(const latchd::Tokenizer& tokenizer, std::string_view text) {
  for (const bool flag : {false, true}) {
    const auto ids =
        tokenizer.Encode(text, {.add_special_tokens = flag, .parse_special_tokens = flag});
    if (!ids.ok()) continue;
    const auto whole = tokenizer.Decode(*ids, flag);
    Check(whole.ok());
    latchd::StreamingDetokenizer stream(tokenizer, flag);
    std::string streamed;
    for (const int32_t id : *ids) streamed += stream.Push(id);
    streamed += stream.Finish();
    Check(streamed == *whole);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  auto parts = latchd::ParseTokenizerJson("fuzz", input);
  if (!parts.ok()) return 0;
  const auto tokenizer = latchd::BuildTokenizer(*std::move(parts));
  if (!tokenizer.ok()) return 0;
  for (const char* text :
       {"", " a  b\n", "hello <s> caf\xC3\xA9 123", "\xF0\x9F\x98\x80\xE2\x80\x8D",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", "\xFF"}) {
    Exercise(**tokenizer, text);
  }
  Exercise(**tokenizer, input.substr(size - std::min<size_t>(size, 64)));
  return 0;
}
