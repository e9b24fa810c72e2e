#pragma once

#include <cstdint>
#include <string>

namespace latchd::e2e {

// Vocabulary of the model below: the 256 bytes, then the special tokens.
inline constexpr int32_t kEos = 256;      // <|endoftext|>
inline constexpr int32_t kImStart = 257;  // <|im_start|>
inline constexpr int32_t kImEnd = 258;    // <|im_end|>
inline constexpr int32_t kVocab = 264;    // the rest: <|extra_N|>
inline constexpr int64_t kContextTokens = 256;

// Writes a Hugging Face folder with two Llama layers of random weights, a byte-level tokenizer
// without merges (one token a byte, so half characters are common) and a ChatML template.
void WriteTinyModel(const std::string& folder, uint64_t seed);

}  // namespace latchd::e2e
