#include "runtime/model/tensor_table.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/model/file_error.h"

namespace latchd {
namespace {

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

std::vector<int64_t> FileShape(const ExpectedTensor& expected) {
  if (expected.is_vector) return {expected.shape.columns};
  return {expected.shape.rows, expected.shape.columns};
}

absl::StatusOr<TensorTable::Place> Resolve(const std::string& file, const ExpectedTensor& expected,
                                           const FileTensor& tensor) {
  const std::string field = absl::StrCat("tensor '", Printable(tensor.name), "'");
  const std::vector<int64_t> shape = FileShape(expected);
  if (tensor.shape != shape) {
    return Malformed(file, absl::StrCat(field, " shape"), ShapeText(shape),
                     ShapeText(tensor.shape));
  }
  if (!tensor.type.has_value()) {
    return absl::UnimplementedError(absl::StrCat(file, ": ", field, " dtype: ", tensor.type_name,
                                                 " is not supported; F32, F16 and BF16 are"));
  }
  return TensorTable::Place{*tensor.type, expected.shape, tensor.bytes, tensor.mapping};
}

}  // namespace

absl::StatusOr<TensorTable> TensorTable::Bind(const std::string& file, const ModelConfig& config,
                                              NameStyle style,
                                              const std::vector<FileTensor>& tensors) {
  absl::flat_hash_map<std::string, const FileTensor*> left;  // what no role has taken yet
  for (const FileTensor& tensor : tensors) left.emplace(tensor.name, &tensor);

  TensorTable table;
  table.layers_ = config.layers;
  table.places_.resize(static_cast<size_t>(config.layers) * kWeightRoles);
  for (int64_t layer = -1; layer < config.layers; ++layer) {
    for (const ExpectedTensor& expected : ExpectedTensors(config, style, layer)) {
      const auto found = left.find(expected.name);
      if (found == left.end()) {
        return Malformed(file, absl::StrCat("tensor '", expected.name, "'"),
                         absl::StrCat("a tensor ", ShapeText(FileShape(expected))), "nothing");
      }
      absl::StatusOr<Place> place = Resolve(file, expected, *found->second);
      if (!place.ok()) return place.status();
      table.places_[table.Index(expected.role, expected.layer)] = *place;
      left.erase(found);
    }
  }
  // The first unknown one in the file's order, so that the message does not depend on hashing.
  for (const FileTensor& tensor : tensors) {
    if (!left.contains(tensor.name) || IsHarmlessExtra(tensor.name, config, style)) continue;
    return absl::UnimplementedError(
        absl::StrCat(file, ": tensor '", Printable(tensor.name), "' is not part of a ",
                     config.architecture, " model of ", config.layers, " layers with this config"));
  }
  return table;
}

size_t TensorTable::Index(WeightRole role, int64_t layer) const {
  return static_cast<size_t>(IsLayerRole(role) ? layer : 0) * kWeightRoles +
         static_cast<size_t>(role);
}

const TensorTable::Place* TensorTable::Find(WeightRole role, int64_t layer) const {
  if (IsLayerRole(role) && (layer < 0 || layer >= layers_)) return nullptr;
  const Place& place = places_[Index(role, layer)];
  return place.shape.rows == 0 ? nullptr : &place;
}

}  // namespace latchd
