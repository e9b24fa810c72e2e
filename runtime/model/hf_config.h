#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "runtime/model/model_config.h"

namespace latchd {

// ModelConfig of a Hugging Face config.json (transformers 4 and 5 spellings). `generation` is
// generation_config.json, or null; it adds EOS ids. `file` is for errors. file_dtype and name are
// left to the caller, who sees the tensors. INVALID_ARGUMENT: a field is missing or malformed.
// UNIMPLEMENTED, by name: an architecture, activation, rope scaling, quantisation or mixture of
// experts that latchd does not run.
absl::StatusOr<ModelConfig> ParseHfConfig(const std::string& file, const nlohmann::json& config,
                                          const nlohmann::json& generation);

}  // namespace latchd
