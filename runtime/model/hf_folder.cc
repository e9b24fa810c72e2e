#include "runtime/model/hf_folder.h"

#include <filesystem>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "runtime/model/file_error.h"
#include "runtime/model/json_file.h"

namespace latchd {
namespace {

constexpr size_t kMaxConfigBytes = 1 << 20;
constexpr size_t kMaxIndexBytes = 16 << 20;
constexpr std::string_view kShardSuffix = ".safetensors";

bool Exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

// A plain file name ending in .safetensors: an index must not reach outside its folder, nor name
// itself.
bool IsShardName(const std::string& name) {
  if (name.size() <= kShardSuffix.size() || name.front() == '.') return false;
  if (name.compare(name.size() - kShardSuffix.size(), kShardSuffix.size(), kShardSuffix) != 0)
    return false;
  for (const char c : name) {
    if (c == '/' || c == '\\' || static_cast<unsigned char>(c) < 0x20) return false;
  }
  return true;
}

// Tensor name -> shard file name.
absl::StatusOr<std::map<std::string, std::string>> ReadIndex(const std::string& path) {
  absl::StatusOr<nlohmann::json> index = ReadJsonObject(path, kMaxIndexBytes);
  if (!index.ok()) return index.status();
  const auto weight_map = index->find("weight_map");
  if (weight_map == index->end() || !weight_map->is_object() || weight_map->empty()) {
    return Malformed(path, "weight_map", "an object of tensor names and files",
                     weight_map == index->end() ? "nothing" : Shown(*weight_map));
  }
  std::map<std::string, std::string> out;
  for (const auto& [tensor, shard] : weight_map->items()) {
    if (!shard.is_string() || !IsShardName(shard.get_ref<const std::string&>())) {
      return Malformed(path, absl::StrCat("weight_map '", Printable(tensor), "'"),
                       "the name of a .safetensors file in the same folder", Shown(shard));
    }
    out.emplace(tensor, shard.get<std::string>());
  }
  return out;
}

// What the folder has instead, for the error when there are no weights to open.
absl::Status NoWeights(const std::string& folder) {
  std::string hint;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string extension = entry.path().extension().string();
    if (extension == ".bin" || extension == ".pth" || extension == ".pt") {
      hint = absl::StrCat(" (", entry.path().filename().string(),
                          " is a pickle: convert it to safetensors)");
    } else if (extension == ".gguf") {
      hint = absl::StrCat(" (give the path of ", entry.path().filename().string(), " instead)");
    }
  }
  return absl::NotFoundError(
      absl::StrCat(folder, ": neither model.safetensors nor model.safetensors.index.json", hint));
}

absl::Status AddShard(const std::string& path, HfFolder* out) {
  absl::StatusOr<std::unique_ptr<SafetensorsFile>> shard = SafetensorsFile::Open(path);
  if (!shard.ok()) return shard.status();
  for (const SafetensorsTensor& tensor : (*shard)->tensors()) {
    out->tensors.push_back(
        {tensor.name, tensor.type, tensor.dtype, tensor.shape, tensor.bytes, (*shard)->mapping()});
  }
  out->shards.push_back(*std::move(shard));
  return absl::OkStatus();
}

absl::Status OpenShards(const std::string& folder, const std::string& index_path, HfFolder* out) {
  absl::StatusOr<std::map<std::string, std::string>> index = ReadIndex(index_path);
  if (!index.ok()) return index.status();
  std::set<std::string> names;
  for (const auto& [tensor, shard] : *index) names.insert(shard);
  absl::flat_hash_map<std::string, std::string> seen;  // tensor -> the shard that holds it
  for (const std::string& shard : names) {
    const size_t first = out->tensors.size();
    if (absl::Status status = AddShard(absl::StrCat(folder, "/", shard), out); !status.ok()) {
      return absl::Status(status.code(), absl::StrCat(std::string(status.message()),
                                                      " (a shard that ", index_path, " names)"));
    }
    for (size_t i = first; i < out->tensors.size(); ++i) {
      const std::string& tensor = out->tensors[i].name;
      if (const auto [place, is_new] = seen.emplace(tensor, shard); !is_new) {
        return Malformed(folder, absl::StrCat("tensor '", Printable(tensor), "'"), "one shard",
                         absl::StrCat(place->second, " and ", shard));
      }
    }
  }
  for (const auto& [tensor, shard] : *index) {
    const auto found = seen.find(tensor);
    if (found != seen.end() && found->second == shard) continue;
    return Malformed(index_path, absl::StrCat("weight_map '", Printable(tensor), "'"),
                     absl::StrCat("a tensor of ", shard),
                     found == seen.end() ? "none" : absl::StrCat("one of ", found->second));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<HfFolder> OpenHfFolder(const std::string& folder) {
  HfFolder out;
  absl::StatusOr<nlohmann::json> config =
      ReadJsonObject(absl::StrCat(folder, "/config.json"), kMaxConfigBytes);
  if (!config.ok()) {
    if (config.status().code() == absl::StatusCode::kNotFound &&
        !Exists(absl::StrCat(folder, "/model.safetensors"))) {
      return absl::NotFoundError(
          absl::StrCat(std::string(config.status().message()), ": not a model folder"));
    }
    return config.status();
  }
  out.config = *std::move(config);
  if (const std::string path = absl::StrCat(folder, "/generation_config.json"); Exists(path)) {
    absl::StatusOr<nlohmann::json> generation = ReadJsonObject(path, kMaxConfigBytes);
    if (!generation.ok()) return generation.status();
    out.generation = *std::move(generation);
  }
  const std::string single = absl::StrCat(folder, "/model.safetensors");
  const std::string index = absl::StrCat(folder, "/model.safetensors.index.json");
  absl::Status status;
  if (Exists(single)) {
    status = AddShard(single, &out);
  } else if (Exists(index)) {
    status = OpenShards(folder, index, &out);
  } else {
    status = NoWeights(folder);
  }
  if (!status.ok()) return status;
  return out;
}

}  // namespace latchd
