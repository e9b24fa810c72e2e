#include "runtime/attention/attention_file.h"

#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/model/safetensors.h"

namespace latchd {
namespace {

const char* FileType(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "F32";
    case DType::kF16: return "F16";
    case DType::kBF16: return "BF16";
  }
  return "";
}

std::vector<int64_t> CacheShape(const AttentionConfig& c) {
  return {c.batch, c.kv_num_heads, c.capacity_tokens, c.head_size};
}

std::string Shape(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// The named tensor, of this type and shape.
absl::StatusOr<std::string_view> Find(const SafetensorsFile& file, const std::string& name,
                                      const std::string& dtype, const std::vector<int64_t>& shape) {
  for (const SafetensorsTensor& tensor : file.tensors()) {
    if (tensor.name != name) continue;
    if (tensor.dtype == dtype && tensor.shape == shape) return tensor.bytes;
    return absl::InvalidArgumentError(absl::StrCat("import: ", name, ": expected ", dtype, " ",
                                                   Shape(shape), ", got ", tensor.dtype, " ",
                                                   Shape(tensor.shape)));
  }
  return absl::InvalidArgumentError(absl::StrCat("import: expected a tensor ", name, " ", dtype,
                                                 " ", Shape(shape), ", got none of that name"));
}

}  // namespace

absl::StatusOr<std::string> WriteAttentionFile(const AttentionSession& session) {
  const AttentionConfig& c = session.config();
  const size_t layer_bytes = session.kv_bytes() / 2 / static_cast<size_t>(c.layers);
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", "latchd-attention"}};
  size_t offset = 0;
  const auto add = [&](const std::string& name, const char* dtype,
                       const std::vector<int64_t>& shape, size_t bytes) {
    header[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  };
  add("lengths", "I64", {c.layers, c.batch}, session.lengths().size() * sizeof(int64_t));
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    add(absl::StrCat("key.", layer), FileType(c.dtype), CacheShape(c), layer_bytes);
    add(absl::StrCat("value.", layer), FileType(c.dtype), CacheShape(c), layer_bytes);
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // so that the data is aligned
  const uint64_t size = text.size();
  std::string file(reinterpret_cast<const char*>(&size), sizeof(size));
  file.reserve(sizeof(size) + text.size() + offset);
  file += text;
  file.append(reinterpret_cast<const char*>(session.lengths().data()),
              session.lengths().size() * sizeof(int64_t));
  std::string key, value;
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    if (absl::Status status = session.ReadLayer(layer, key, value); !status.ok()) return status;
    file += key;
    file += value;
  }
  return file;
}

absl::Status ReadAttentionFile(std::string_view file, AttentionSession& session) {
  const AttentionConfig& c = session.config();
  auto parsed = SafetensorsFile::Parse("import", file);
  if (!parsed.ok()) return parsed.status();
  auto lengths_bytes = Find(**parsed, "lengths", "I64", {c.layers, c.batch});
  if (!lengths_bytes.ok()) return lengths_bytes.status();
  std::vector<int64_t> lengths(static_cast<size_t>(c.layers * c.batch));
  std::memcpy(lengths.data(), lengths_bytes->data(), lengths_bytes->size());
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] < 0 || lengths[i] > c.capacity_tokens) {
      return absl::InvalidArgumentError(absl::StrCat("import: lengths[", i, "]: expected 0..",
                                                     c.capacity_tokens, ", got ", lengths[i]));
    }
  }
  std::vector<std::pair<std::string_view, std::string_view>> layers;
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    auto key = Find(**parsed, absl::StrCat("key.", layer), FileType(c.dtype), CacheShape(c));
    if (!key.ok()) return key.status();
    auto value = Find(**parsed, absl::StrCat("value.", layer), FileType(c.dtype), CacheShape(c));
    if (!value.ok()) return value.status();
    layers.emplace_back(*key, *value);
  }
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    const auto& [key, value] = layers[static_cast<size_t>(layer)];
    if (absl::Status status = session.WriteLayer(layer, key, value); !status.ok()) return status;
  }
  session.SetLengths(std::move(lengths));
  return absl::OkStatus();
}

}  // namespace latchd
