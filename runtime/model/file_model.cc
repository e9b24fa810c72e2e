#include "runtime/model/file_model.h"

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/model/file_error.h"
#include "runtime/model/gguf_config.h"
#include "runtime/model/hf_config.h"
#include "runtime/model/mapped_file.h"
#include "runtime/model/sha256.h"
#include "runtime/model/tensor_table.h"

namespace latchd {
namespace {

constexpr size_t kMaxTokenizerBytes = 256 << 20;
// Of each tensor's data, so that two fine-tunings of one architecture do not pass for the same
// model.
constexpr size_t kFingerprintHeadBytes = 256;

// Every field that changes what the model computes or how a session is laid out.
std::string ConfigText(const ModelConfig& c) {
  return absl::StrCat(absl::StrJoin({c.hidden, c.layers, c.q_heads, c.kv_heads, c.head_dim,
                                     c.feed_forward, c.vocab, c.context_tokens, c.rotary_dim,
                                     c.sliding_window, c.rope_scaling.original_context_tokens},
                                    " "),
                      " ", c.architecture, " eps ", c.norm_eps, " theta ", c.rope_theta,
                      " interleaved ", c.rotary_interleaved, " scaling ",
                      static_cast<int>(c.rope_scaling.kind), " ", c.rope_scaling.factor, " ",
                      c.rope_scaling.low_freq_factor, " ", c.rope_scaling.high_freq_factor,
                      " biases ", c.qkv_bias, c.output_bias, c.mlp_bias, " qk_norm ", c.qk_norm,
                      " tied ", c.tied_embeddings, "\n");
}

std::string Fingerprint(const ModelConfig& config, const std::vector<FileTensor>& tensors) {
  std::vector<const FileTensor*> order;
  for (const FileTensor& tensor : tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](auto* a, auto* b) { return a->name < b->name; });
  Sha256 hash;
  hash.Update(ConfigText(config));
  for (const FileTensor* tensor : order) {
    hash.Update(absl::StrCat(tensor->name.size(), " ", tensor->name, " ", tensor->type_name, " [",
                             absl::StrJoin(tensor->shape, ","), "] ", tensor->bytes.size(), "\n"));
    hash.Update(tensor->bytes.substr(0, kFingerprintHeadBytes));
  }
  return hash.Hex();
}

// What --dtype auto takes: the type of the matrices; norms and biases are often f32 beside smaller
// ones.
DType FileDtype(StorageType type) {
  if (type == StorageType::kF32) return DType::kF32;
  return type == StorageType::kBF16 ? DType::kBF16 : DType::kF16;
}

class FileModel : public ModelSource {
 public:
  struct Files {
    std::vector<std::unique_ptr<SafetensorsFile>> shards;
    std::unique_ptr<GgufFile> gguf;
  };

  static absl::StatusOr<std::unique_ptr<ModelSource>> Make(const std::string& path,
                                                           ModelConfig config, NameStyle style,
                                                           const std::vector<FileTensor>& tensors,
                                                           Files files) {
    absl::StatusOr<TensorTable> table = TensorTable::Bind(path, config, style, tensors);
    if (!table.ok()) return table.status();
    config.file_dtype = FileDtype(table->Find(WeightRole::kQ, 0)->type);
    std::unique_ptr<FileModel> model(new FileModel());
    model->path_ = path;
    model->fingerprint_ = Fingerprint(config, tensors);
    model->config_ = std::move(config);
    model->table_ = *std::move(table);
    model->files_ = std::move(files);
    return model;
  }

  const ModelConfig& config() const override { return config_; }
  const std::string& path() const override { return path_; }
  std::string fingerprint() const override { return fingerprint_; }
  bool Has(WeightRole role, int64_t layer) const override {
    return table_.Find(role, layer) != nullptr;
  }

  absl::StatusOr<WeightShape> Shape(WeightRole role, int64_t layer) const override {
    absl::StatusOr<const TensorTable::Place*> place = Find(role, layer);
    if (!place.ok()) return place.status();
    return (*place)->shape;
  }

  absl::Status ReadRows(WeightRole role, int64_t layer, int64_t row_begin, int64_t rows, DType as,
                        void* out) const override {
    absl::StatusOr<const TensorTable::Place*> found = Find(role, layer);
    if (!found.ok()) return found.status();
    const TensorTable::Place& place = **found;
    if (row_begin < 0 || rows < 0 || row_begin > place.shape.rows ||
        rows > place.shape.rows - row_begin) {
      return Malformed(path_, absl::StrCat("rows of ", std::string(Name(role))),
                       absl::StrCat("a range inside ", place.shape.rows),
                       absl::StrCat("[", row_begin, ", ", row_begin, " + ", rows, ")"));
    }
    const size_t row_bytes = place.bytes.size() / static_cast<size_t>(place.shape.rows);
    const std::string_view part = place.bytes.substr(static_cast<size_t>(row_begin) * row_bytes,
                                                     static_cast<size_t>(rows) * row_bytes);
    if (place.mapping != nullptr && row_begin == 0) place.mapping->WillNeed(place.bytes);
    DequantizeAs(place.type, part.data(), rows * place.shape.columns, as, out);
    return absl::OkStatus();
  }

  void ReleasePages() const override {
    if (files_.gguf != nullptr && files_.gguf->mapping() != nullptr)
      files_.gguf->mapping()->Release();
    for (const auto& shard : files_.shards) {
      if (shard->mapping() != nullptr) shard->mapping()->Release();
    }
  }

  size_t file_bytes() const override {
    size_t bytes = files_.gguf == nullptr ? 0 : files_.gguf->file_bytes();
    for (const auto& shard : files_.shards) bytes += shard->file_bytes();
    return bytes;
  }

  std::string tokenizer_json() const override {
    if (files_.gguf != nullptr) return "";
    absl::StatusOr<std::string> text =
        ReadSmallFile(absl::StrCat(path_, "/tokenizer.json"), kMaxTokenizerBytes);
    return text.ok() ? *std::move(text) : "";
  }

 private:
  FileModel() = default;

  absl::StatusOr<const TensorTable::Place*> Find(WeightRole role, int64_t layer) const {
    const TensorTable::Place* place = table_.Find(role, layer);
    if (place != nullptr) return place;
    return absl::NotFoundError(absl::StrCat(path_, ": the model has no ", std::string(Name(role)),
                                            " tensor in layer ", layer));
  }

  std::string path_;
  ModelConfig config_;
  std::string fingerprint_;
  TensorTable table_;
  Files files_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ModelSource>> MakeHfModel(const std::string& path, HfFolder folder) {
  absl::StatusOr<ModelConfig> config =
      ParseHfConfig(absl::StrCat(path, "/config.json"), folder.config, folder.generation);
  if (!config.ok()) return config.status();
  config->name = std::filesystem::path(path).lexically_normal().filename().string();
  if (config->name.empty())
    config->name = std::filesystem::path(path).parent_path().filename().string();
  return FileModel::Make(path, *std::move(config), NameStyle::kHuggingFace, folder.tensors,
                         {.shards = std::move(folder.shards)});
}

absl::StatusOr<std::unique_ptr<ModelSource>> MakeGgufModel(std::unique_ptr<GgufFile> file) {
  absl::StatusOr<ModelConfig> config = ParseGgufConfig(*file);
  if (!config.ok()) return config.status();
  const std::string path = file->name();
  if (config->name.empty()) config->name = std::filesystem::path(path).stem().string();
  std::vector<FileTensor> tensors;
  for (const GgufTensor& tensor : file->tensors()) {
    tensors.push_back({tensor.name, tensor.type, std::string(Traits(tensor.type).name),
                       tensor.shape, tensor.bytes, file->mapping()});
  }
  return FileModel::Make(path, *std::move(config), NameStyle::kGguf, tensors,
                         {.gguf = std::move(file)});
}

}  // namespace latchd
