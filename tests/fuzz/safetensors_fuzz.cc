#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "runtime/model/dequantize.h"
#include "runtime/model/hf_config.h"
#include "runtime/model/json_file.h"
#include "runtime/model/safetensors.h"

// Any bytes as a safetensors file, whose tensors are then read whole; and the same bytes as a
// config.json.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace latchd;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (absl::StatusOr<nlohmann::json> config = ParseJsonObject("fuzz", bytes); config.ok()) {
    (void)ParseHfConfig("fuzz", *config, nlohmann::json()).ok();
    return 0;
  }
  absl::StatusOr<std::unique_ptr<SafetensorsFile>> file = SafetensorsFile::Parse("fuzz", bytes);
  if (!file.ok()) return 0;
  std::vector<float> values;
  for (const SafetensorsTensor& tensor : (*file)->tensors()) {
    if (!tensor.type.has_value()) continue;
    values.resize(tensor.bytes.size() / static_cast<size_t>(Traits(*tensor.type).block_bytes));
    if (values.empty()) continue;
    DequantizeAs(*tensor.type, tensor.bytes.data(), static_cast<int64_t>(values.size()),
                 DType::kF32, values.data());
  }
  return 0;
}
