#include "runtime/tokenizer/tokenizer.h"
#include "runtime/tokenizer/utf8.h"

namespace latchd {

StreamingDetokenizer::StreamingDetokenizer(const Tokenizer& tokenizer, bool skip_special)
    : tokenizer_(tokenizer), skip_special_(skip_special) {}

std::string StreamingDetokenizer::Push(int32_t id) {
  if (skip_special_ && tokenizer_.IsSpecial(id)) return {};
  pending_ += tokenizer_.TokenBytes(id);
  return Take(/*at_end=*/false);
}

std::string StreamingDetokenizer::Finish() { return Take(/*at_end=*/true); }

std::string StreamingDetokenizer::Take(bool at_end) {
  std::string text;
  pending_.erase(0, AppendLossyUtf8(pending_, at_end, &text));
  if (at_start_ && !text.empty()) {
    at_start_ = false;
    if (tokenizer_.strips_leading_space() && text[0] == ' ') text.erase(0, 1);
  }
  return text;
}

}  // namespace latchd
