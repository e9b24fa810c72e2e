// Prints what a tokenizer makes of the texts on standard input, for
// tests/parity/tokenizer_parity.py.
//
//   tokenizer_dump MODEL [--no-special] [--bench]
//   tokenizer_dump MODEL --chat
//
// Input: records "<bytes>\n<text>", one after the other. Output, a line a record: the ids, a tab,
// and the hexadecimal form of Decode(ids). With --chat each record is one message "role\ncontent"
// and the rendered prompt is printed in hexadecimal. Exits 1 with a message when a text is refused,
// or when streaming the ids gives another text than decoding them at once.

#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "runtime/tokenizer/tokenizer.h"

namespace {

std::string Hex(const std::string& text) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const char c : text) {
    out.push_back(kDigits[static_cast<unsigned char>(c) >> 4]);
    out.push_back(kDigits[static_cast<unsigned char>(c) & 15]);
  }
  return out;
}

bool ReadRecord(std::string* text) {
  size_t size = 0;
  if (!(std::cin >> size)) return false;
  std::cin.get();
  text->assign(size, '\0');
  return static_cast<bool>(std::cin.read(text->data(), static_cast<std::streamsize>(size)));
}

int Fail(const absl::Status& status) {
  std::cerr << status << "\n";
  return 1;
}

int Chat(const latchd::Tokenizer& tokenizer) {
  std::vector<latchd::ChatMessage> messages;
  for (std::string text; ReadRecord(&text);) {
    const size_t line = text.find('\n');
    messages.push_back({text.substr(0, line), text.substr(line + 1)});
  }
  const auto prompt = latchd::ApplyChatTemplate(tokenizer, messages);
  if (!prompt.ok()) return Fail(prompt.status());
  std::cout << Hex(*prompt) << "\n";
  return 0;
}

int Dump(const latchd::Tokenizer& tokenizer, bool special, bool bench) {
  size_t bytes = 0;
  std::chrono::duration<double> time{0};
  for (std::string text; ReadRecord(&text);) {
    const auto start = std::chrono::steady_clock::now();
    const auto ids = tokenizer.Encode(text, {.add_special_tokens = special});
    time += std::chrono::steady_clock::now() - start;
    bytes += text.size();
    if (!ids.ok()) return Fail(ids.status());
    if (bench) continue;
    const auto whole = tokenizer.Decode(*ids, /*skip_special=*/true);
    if (!whole.ok()) return Fail(whole.status());
    latchd::StreamingDetokenizer stream(tokenizer, /*skip_special=*/true);
    std::string streamed;
    for (const int32_t id : *ids) streamed += stream.Push(id);
    streamed += stream.Finish();
    if (streamed != *whole) return Fail(absl::InternalError("streamed text differs: " + text));
    for (size_t i = 0; i < ids->size(); ++i) std::cout << (i == 0 ? "" : " ") << (*ids)[i];
    std::cout << "\t" << Hex(*whole) << "\n";
  }
  if (bench) {
    std::printf("encoded %zu bytes in %.3f s: %.2f MB/s\n", bytes, time.count(),
                static_cast<double>(bytes) / 1e6 / time.count());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::ios::sync_with_stdio(false);
  bool special = true, bench = false, chat = false;
  for (int i = 2; i < argc; ++i) {
    const std::string flag = argv[i];
    special = special && flag != "--no-special";
    bench = bench || flag == "--bench";
    chat = chat || flag == "--chat";
  }
  if (argc < 2) {
    std::cerr << "usage: tokenizer_dump MODEL [--no-special] [--bench] [--chat]\n";
    return 2;
  }
  const auto tokenizer = latchd::LoadTokenizer(argv[1]);
  if (!tokenizer.ok()) return Fail(tokenizer.status());
  return chat ? Chat(**tokenizer) : Dump(**tokenizer, special, bench);
}
