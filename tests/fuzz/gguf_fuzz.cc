#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/model/file_model.h"
#include "runtime/model/gguf.h"
#include "runtime/model/tensor_names.h"

// Any bytes as a GGUF file: parsed, every metadata value converted to every type, and, where they
// make a model, the first and last row of every tensor read.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace latchd;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  absl::StatusOr<std::unique_ptr<GgufFile>> file = GgufFile::Parse("fuzz", bytes);
  if (!file.ok()) return 0;
  for (const auto& [key, value] : (*file)->metadata()) {
    (void)value.Int().ok();
    (void)value.Float().ok();
    (void)value.Bool().ok();
    (void)value.String().ok();
    (void)value.Strings().ok();
    (void)value.Ints().ok();
    (void)value.Floats().ok();
  }
  absl::StatusOr<std::unique_ptr<ModelSource>> model = MakeGgufModel(*std::move(file));
  if (!model.ok()) return 0;
  std::vector<float> row;
  for (size_t role = 0; role < kWeightRoles; ++role) {
    for (int64_t layer = 0; layer < (*model)->config().layers; ++layer) {
      const auto at = static_cast<WeightRole>(role);
      if (!(*model)->Has(at, layer)) continue;
      const WeightShape shape = *(*model)->Shape(at, layer);
      row.resize(static_cast<size_t>(shape.columns));
      for (const int64_t begin : {int64_t{0}, shape.rows - 1}) {
        if (!(*model)->ReadRows(at, layer, begin, 1, DType::kF32, row.data()).ok())
          __builtin_trap();
        if (!(*model)->ReadRows(at, layer, begin, 1, DType::kBF16, row.data()).ok())
          __builtin_trap();
      }
    }
  }
  return 0;
}
