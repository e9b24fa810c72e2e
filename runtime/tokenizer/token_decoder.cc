#include "runtime/tokenizer/token_decoder.h"

#include "absl/strings/str_replace.h"
#include "runtime/tokenizer/pre_tokenizer.h"
#include "runtime/tokenizer/utf8.h"

namespace latchd {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

std::string Apply(const TokenDecoder::Replace& step, const std::string& token) {
  return absl::StrReplaceAll(token, {{step.from, step.to}});
}

std::string Apply(const TokenDecoder::ByteFallback&, const std::string& token) {
  if (token.size() != 6 || token.compare(0, 3, "<0x") != 0 || token[5] != '>') return token;
  const int high = HexDigit(token[3]), low = HexDigit(token[4]);
  if (high < 0 || low < 0) return token;
  return std::string(1, static_cast<char>(high * 16 + low));
}

// A token with a character outside the alphabet is text already.
std::string Apply(const TokenDecoder::ByteLevel&, const std::string& token) {
  std::string bytes;
  for (size_t i = 0; i < token.size();) {
    const int byte = ByteLevelByte(NextCodePoint(token, &i));
    if (byte < 0) return token;
    bytes.push_back(static_cast<char>(byte));
  }
  return bytes;
}

}  // namespace

std::string TokenDecoder::Bytes(std::string_view token) const {
  std::string bytes(token);
  for (const Step& step : steps_) {
    std::string next = std::visit([&](const auto& kind) { return Apply(kind, bytes); }, step);
    const bool changed = next != bytes;
    bytes = std::move(next);
    // What is bytes now may be no UTF-8 and is not read as characters again.
    if (changed && !std::holds_alternative<Replace>(step)) break;
  }
  return bytes;
}

std::string TokenDecoder::AddedTokenBytes(std::string_view content) const {
  std::string bytes(content);
  for (const Step& step : steps_) {
    if (const auto* replace = std::get_if<Replace>(&step)) bytes = Apply(*replace, bytes);
  }
  return bytes;
}

}  // namespace latchd
