#pragma once

#include <string>

#include "absl/status/status.h"
#include "runtime/tokenizer/bpe.h"
#include "runtime/tokenizer/text_tokenizer.h"

namespace latchd {

// A GGUF file names its pre-tokenizer (tokenizer.ggml.pre) where tokenizer.json spells it out. Adds
// the steps of `name` to `parts`, sets the BPE options that go with it, and whether such models
// begin with BOS when the file does not say. UNIMPLEMENTED for a name that is not known.
absl::Status MakeGgufPreTokenizer(const std::string& name, TokenizerParts* parts,
                                  Bpe::Options* options, bool* add_bos);

}  // namespace latchd
