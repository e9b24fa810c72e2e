#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "runtime/model/safetensors.h"
#include "runtime/model/tensor_table.h"

namespace latchd {

// The files of a Hugging Face model folder, opened and checked against each other.
struct HfFolder {
  nlohmann::json config;
  nlohmann::json generation;  // null: there is no generation_config.json
  std::vector<std::unique_ptr<SafetensorsFile>> shards;
  std::vector<FileTensor> tensors;  // of all shards; names are unique
};

// Takes model.safetensors, or the shards of model.safetensors.index.json (as transformers: in this
// order). NOT_FOUND (a file is missing) or INVALID_ARGUMENT: an index that names a file outside the
// folder, or a tensor that its shard lacks; a tensor in two shards; malformed files.
absl::StatusOr<HfFolder> OpenHfFolder(const std::string& folder);

}  // namespace latchd
