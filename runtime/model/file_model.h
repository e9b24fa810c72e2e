#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/model/gguf.h"
#include "runtime/model/hf_folder.h"
#include "runtime/model/model_source.h"

namespace latchd {

// OpenModel behind the file system: a ModelSource over files that are already opened. Errors as
// OpenModel.
absl::StatusOr<std::unique_ptr<ModelSource>> MakeHfModel(const std::string& path, HfFolder folder);
absl::StatusOr<std::unique_ptr<ModelSource>> MakeGgufModel(std::unique_ptr<GgufFile> file);

}  // namespace latchd
