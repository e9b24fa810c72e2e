#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/model/dequantize.h"
#include "runtime/model/mapped_file.h"
#include "runtime/model/model_config.h"
#include "runtime/model/model_source.h"
#include "runtime/model/tensor_names.h"

namespace latchd {

// One tensor as either file format describes it.
struct FileTensor {
  std::string name;
  std::optional<StorageType>
      type;  // none: a format latchd does not compute with, named by type_name
  std::string type_name;
  std::vector<int64_t> shape;
  std::string_view bytes;
  const MappedFile* mapping = nullptr;  // null when parsed from memory
};

// Where each role's tensor lies. Made by Bind, which proves that the file has exactly the tensors
// of the config.
class TensorTable {
 public:
  struct Place {
    StorageType type = StorageType::kF32;
    WeightShape shape;  // rows 0: absent
    std::string_view bytes;
    const MappedFile* mapping = nullptr;
  };

  // INVALID_ARGUMENT: a tensor is missing, or its shape differs. UNIMPLEMENTED, by name: one that
  // the config does not call for, or of a dtype that latchd does not read.
  static absl::StatusOr<TensorTable> Bind(const std::string& file, const ModelConfig& config,
                                          NameStyle style, const std::vector<FileTensor>& tensors);

  // Null when absent or when `layer` is out of range.
  const Place* Find(WeightRole role, int64_t layer) const;

 private:
  size_t Index(WeightRole role, int64_t layer) const;

  int64_t layers_ = 0;
  std::vector<Place> places_;  // [layers, kWeightRoles]; roles outside layers sit in layer 0
};

}  // namespace latchd
