#include "runtime/model/model_source.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/model/file_model.h"

namespace latchd {

absl::StatusOr<std::unique_ptr<ModelSource>> OpenModel(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    absl::StatusOr<HfFolder> folder = OpenHfFolder(path);
    if (!folder.ok()) return folder.status();
    return MakeHfModel(path, *std::move(folder));
  }
  // Whatever else is wrong with the path, opening the file says it.
  absl::StatusOr<std::unique_ptr<GgufFile>> file = GgufFile::Open(path);
  if (!file.ok()) return file.status();
  return MakeGgufModel(*std::move(file));
}

}  // namespace latchd
