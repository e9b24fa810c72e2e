#pragma once

#include "absl/status/statusor.h"
#include "runtime/model/gguf.h"
#include "runtime/model/model_config.h"

namespace latchd {

// GGUF's tensor of per-pair rotary frequency divisors, [rotary_dim / 2] f32: how llama3 rope
// scaling is stored.
inline constexpr char kRopeFreqsTensor[] = "rope_freqs.weight";

// ModelConfig of a GGUF file's metadata (ggml/docs/gguf.md). Biases, the tied output head and the
// vocabulary size are read off its tensors, as the metadata does not say. file_dtype is left to the
// caller. INVALID_ARGUMENT / NOT_FOUND: a field is malformed or missing. UNIMPLEMENTED, by name: an
// architecture, rope scaling or mixture of experts that latchd does not run.
absl::StatusOr<ModelConfig> ParseGgufConfig(const GgufFile& file);

}  // namespace latchd
