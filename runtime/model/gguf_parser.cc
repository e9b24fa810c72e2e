#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "runtime/model/file_error.h"
#include "runtime/model/gguf.h"

namespace latchd {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is read in place, little-endian");

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint64_t kMaxNameBytes = 65535;
constexpr uint32_t kMaxDimensions = 4;
constexpr uint64_t kDefaultAlignment = 32;
constexpr char kAlignmentKey[] = "general.alignment";

constexpr size_t kTypeBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

// ggml_type numbers (ggml.h). Those that latchd does not read are listed so that a refusal can name
// them.
struct FileType {
  uint32_t id;
  std::string_view name;
  std::optional<StorageType> storage;
};
constexpr FileType kFileTypes[] = {
    {0, "F32", StorageType::kF32},
    {1, "F16", StorageType::kF16},
    {2, "Q4_0", StorageType::kQ4_0},
    {3, "Q4_1", StorageType::kQ4_1},
    {6, "Q5_0", StorageType::kQ5_0},
    {7, "Q5_1", StorageType::kQ5_1},
    {8, "Q8_0", StorageType::kQ8_0},
    {9, "Q8_1", {}},
    {10, "Q2_K", {}},
    {11, "Q3_K", {}},
    {12, "Q4_K", StorageType::kQ4_K},
    {13, "Q5_K", StorageType::kQ5_K},
    {14, "Q6_K", StorageType::kQ6_K},
    {15, "Q8_K", {}},
    {16, "IQ2_XXS", {}},
    {17, "IQ2_XS", {}},
    {18, "IQ3_XXS", {}},
    {19, "IQ1_S", {}},
    {20, "IQ4_NL", {}},
    {21, "IQ3_S", {}},
    {22, "IQ2_S", {}},
    {23, "IQ4_XS", {}},
    {24, "I8", {}},
    {25, "I16", {}},
    {26, "I32", {}},
    {27, "I64", {}},
    {28, "F64", {}},
    {29, "IQ1_M", {}},
    {30, "BF16", StorageType::kBF16},
    {34, "TQ1_0", {}},
    {35, "TQ2_0", {}},
    {39, "MXFP4", {}},
    {40, "NVFP4", {}},
};

template <typename T>
T Load(const char* data) {
  T value;
  std::memcpy(&value, data, sizeof(value));
  return value;
}

}  // namespace

// Reads forward through the header. Every read is checked against what is left of the file, so no
// count or length from the file can make it allocate or step outside.
class GgufFile::Parser {
 public:
  explicit Parser(GgufFile& file) : file_(file) {}

  absl::Status Run() {
    absl::Status status = ReadHeader();
    for (uint64_t i = 0; status.ok() && i < metadata_count_; ++i) status = ReadMetadata(i);
    if (status.ok()) status = ReadAlignment();
    for (uint64_t i = 0; status.ok() && i < tensor_count_; ++i) status = ReadTensorInfo(i);
    if (status.ok()) status = PlaceTensors();
    return WithPrefix(file_.name_, status);
  }

 private:
  template <typename T>
  absl::Status Read(T* out, const std::string& field) {
    if (left() < sizeof(T)) return Truncated(field, sizeof(T));
    *out = Load<T>(file_.bytes_.data() + at_);
    at_ += sizeof(T);
    return absl::OkStatus();
  }

  absl::Status ReadString(std::string_view* out, const std::string& field) {
    uint64_t length = 0;
    if (absl::Status status = Read(&length, absl::StrCat(field, " length")); !status.ok())
      return status;
    if (length > left()) return Truncated(field, length);
    *out = file_.bytes_.substr(at_, length);
    at_ += length;
    return absl::OkStatus();
  }

  uint64_t left() const { return file_.bytes_.size() - at_; }

  absl::Status Truncated(const std::string& field, uint64_t bytes) const {
    return Malformed("", field, absl::StrCat(bytes, " bytes at offset ", at_),
                     absl::StrCat(left(), " before the end of the file"));
  }

  absl::Status ReadHeader();
  absl::Status ReadMetadata(uint64_t index);
  absl::Status ReadArray(GgufValue* value, const std::string& field);
  absl::Status ReadAlignment();
  absl::Status ReadTensorInfo(uint64_t index);
  absl::Status PlaceTensors();

  GgufFile& file_;
  size_t at_ = 0;
  uint64_t metadata_count_ = 0;
  uint64_t tensor_count_ = 0;
  uint64_t alignment_ = kDefaultAlignment;
  std::vector<uint64_t> offsets_;       // of file_.tensors_, from the start of the data section
  std::vector<uint64_t> tensor_bytes_;  // of file_.tensors_
  absl::flat_hash_set<std::string> names_;
};

absl::Status GgufFile::Parser::ReadHeader() {
  uint32_t magic = 0, version = 0;
  if (absl::Status status = Read(&magic, "magic"); !status.ok()) return status;
  if (magic != kMagic) {
    return Malformed("", "magic", "'GGUF'",
                     absl::StrCat("'", Printable(file_.bytes_.substr(0, 4)), "'"));
  }
  if (absl::Status status = Read(&version, "version"); !status.ok()) return status;
  if (version != 2 && version != 3) {
    const bool swapped = (version & 0xffff) == 0;
    return absl::UnimplementedError(absl::StrCat("version: expected 2 or 3, little-endian, got ",
                                                 version, swapped ? " (a big-endian file)" : ""));
  }
  if (absl::Status status = Read(&tensor_count_, "tensor_count"); !status.ok()) return status;
  if (absl::Status status = Read(&metadata_count_, "metadata_kv_count"); !status.ok())
    return status;
  // The smallest entry: an empty name, a type and a value; an empty name, dimensions, a type and an
  // offset.
  if (metadata_count_ > left() / 13) {
    return Malformed("", "metadata_kv_count", "entries that fit the file",
                     absl::StrCat(metadata_count_));
  }
  if (tensor_count_ > left() / 24) {
    return Malformed("", "tensor_count", "entries that fit the file", absl::StrCat(tensor_count_));
  }
  return absl::OkStatus();
}

absl::Status GgufFile::Parser::ReadMetadata(uint64_t index) {
  GgufValue value;
  std::string_view key;
  std::string field = absl::StrCat("metadata key ", index);
  if (absl::Status status = ReadString(&key, field); !status.ok()) return status;
  if (key.empty() || key.size() > kMaxNameBytes) {
    return Malformed("", field, absl::StrCat("1 to ", kMaxNameBytes, " bytes"),
                     absl::StrCat(key.size()));
  }
  value.key = std::string(key);
  field = absl::StrCat("metadata '", Printable(key), "'");
  uint32_t type = 0;
  if (absl::Status status = Read(&type, absl::StrCat(field, " type")); !status.ok()) return status;
  if (type >= std::size(kTypeBytes)) {
    return Malformed("", absl::StrCat(field, " type"), "a value type 0 to 12", absl::StrCat(type));
  }
  value.type = static_cast<GgufType>(type);
  absl::Status status;
  if (value.type == GgufType::kString) {
    status = ReadString(&value.bytes, field);
  } else if (value.type == GgufType::kArray) {
    status = ReadArray(&value, field);
  } else if (left() < kTypeBytes[type]) {
    status = Truncated(field, kTypeBytes[type]);
  } else {
    value.bytes = file_.bytes_.substr(at_, kTypeBytes[type]);
    at_ += kTypeBytes[type];
  }
  if (!status.ok()) return status;
  if (!file_.metadata_.try_emplace(value.key, value).second) {
    return Malformed("", field, "one entry", "a second one");
  }
  return absl::OkStatus();
}

absl::Status GgufFile::Parser::ReadArray(GgufValue* value, const std::string& field) {
  uint32_t type = 0;
  if (absl::Status status = Read(&type, absl::StrCat(field, " element type")); !status.ok())
    return status;
  // Nested arrays have no use in model files and no reader among the usual tools; refusing them
  // bounds the recursion.
  if (type >= std::size(kTypeBytes) || type == static_cast<uint32_t>(GgufType::kArray)) {
    return Malformed("", absl::StrCat(field, " element type"), "a scalar or string type 0 to 12",
                     type == 9 ? "a nested array" : absl::StrCat(type));
  }
  value->element_type = static_cast<GgufType>(type);
  if (absl::Status status = Read(&value->count, absl::StrCat(field, " count")); !status.ok())
    return status;
  const size_t begin = at_;
  if (value->element_type == GgufType::kString) {
    if (value->count > left() / sizeof(uint64_t)) {
      return Malformed("", absl::StrCat(field, " count"), "elements that fit the file",
                       absl::StrCat(value->count));
    }
    const std::string element_field = absl::StrCat(field, " element");
    std::string_view element;
    for (uint64_t i = 0; i < value->count; ++i) {
      if (absl::Status status = ReadString(&element, element_field); !status.ok()) return status;
    }
  } else {
    if (value->count > left() / kTypeBytes[type]) {
      return Malformed("", absl::StrCat(field, " count"), "elements that fit the file",
                       absl::StrCat(value->count));
    }
    at_ += value->count * kTypeBytes[type];
  }
  value->bytes = file_.bytes_.substr(begin, at_ - begin);
  return absl::OkStatus();
}

absl::Status GgufFile::Parser::ReadAlignment() {
  const GgufValue* value = file_.Find(kAlignmentKey);
  if (value == nullptr) return absl::OkStatus();
  absl::StatusOr<int64_t> alignment = value->Int();
  if (!alignment.ok()) return alignment.status();
  if (*alignment < 1 || *alignment > (1 << 20) ||
      !std::has_single_bit(static_cast<uint64_t>(*alignment))) {
    return Malformed("", absl::StrCat("metadata '", kAlignmentKey, "'"),
                     "a power of two up to 2^20", absl::StrCat(*alignment));
  }
  alignment_ = static_cast<uint64_t>(*alignment);
  return absl::OkStatus();
}

absl::Status GgufFile::Parser::ReadTensorInfo(uint64_t index) {
  std::string_view name;
  std::string field = absl::StrCat("tensor ", index, " name");
  if (absl::Status status = ReadString(&name, field); !status.ok()) return status;
  if (name.empty() || name.size() > kMaxNameBytes) {
    return Malformed("", field, absl::StrCat("1 to ", kMaxNameBytes, " bytes"),
                     absl::StrCat(name.size()));
  }
  field = absl::StrCat("tensor '", Printable(name), "'");
  if (!names_.insert(std::string(name)).second)
    return Malformed("", field, "one entry", "a second one");

  GgufTensor tensor;
  tensor.name = std::string(name);
  uint32_t dimensions = 0, type = 0;
  if (absl::Status status = Read(&dimensions, absl::StrCat(field, " dimensions")); !status.ok())
    return status;
  if (dimensions < 1 || dimensions > kMaxDimensions) {
    return Malformed("", absl::StrCat(field, " dimensions"), "1 to 4", absl::StrCat(dimensions));
  }
  uint64_t elements = 1;
  for (uint32_t d = 0; d < dimensions; ++d) {
    uint64_t extent = 0;
    if (absl::Status status = Read(&extent, absl::StrCat(field, " shape")); !status.ok())
      return status;
    if (extent == 0 || extent > INT64_MAX || __builtin_mul_overflow(elements, extent, &elements)) {
      return Malformed("", absl::StrCat(field, " shape"),
                       "positive extents whose product fits the file",
                       absl::StrCat(extent, " as extent ", d));
    }
    tensor.shape.push_back(static_cast<int64_t>(extent));
  }
  if (absl::Status status = Read(&type, absl::StrCat(field, " type")); !status.ok()) return status;
  const auto* known = std::find_if(std::begin(kFileTypes), std::end(kFileTypes),
                                   [&](auto& t) { return t.id == type; });
  if (known == std::end(kFileTypes)) {
    return absl::UnimplementedError(absl::StrCat(field, " type: unknown ggml type ", type));
  }
  if (!known->storage.has_value()) {
    return absl::UnimplementedError(
        absl::StrCat(field, " type: ", std::string(known->name),
                     " is not supported; F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, "
                     "Q4_K, Q5_K and Q6_K are"));
  }
  tensor.type = *known->storage;
  const StorageTraits& traits = Traits(tensor.type);
  const auto block_elements = static_cast<uint64_t>(traits.block_elements);
  if (static_cast<uint64_t>(tensor.shape[0]) % block_elements != 0) {
    return Malformed("", absl::StrCat(field, " shape"),
                     absl::StrCat("rows of a multiple of ", block_elements, " elements for ",
                                  std::string(traits.name)),
                     absl::StrCat(tensor.shape[0]));
  }
  std::reverse(tensor.shape.begin(), tensor.shape.end());
  uint64_t bytes = 0, offset = 0;
  if (__builtin_mul_overflow(elements / block_elements, static_cast<uint64_t>(traits.block_bytes),
                             &bytes)) {
    return Malformed("", absl::StrCat(field, " shape"), "a size that fits the file",
                     absl::StrCat(elements, " elements"));
  }
  if (absl::Status status = Read(&offset, absl::StrCat(field, " offset")); !status.ok())
    return status;
  offsets_.push_back(offset);
  tensor_bytes_.push_back(bytes);
  file_.tensors_.push_back(std::move(tensor));
  return absl::OkStatus();
}

// Gives each tensor its bytes: aligned, inside the data section, and not shared with another
// tensor.
absl::Status GgufFile::Parser::PlaceTensors() {
  const uint64_t data_begin = (at_ + alignment_ - 1) / alignment_ * alignment_;
  const uint64_t data_bytes =
      data_begin <= file_.bytes_.size() ? file_.bytes_.size() - data_begin : 0;
  std::vector<std::pair<uint64_t, size_t>> order;
  for (size_t i = 0; i < file_.tensors_.size(); ++i) {
    const std::string field =
        absl::StrCat("tensor '", Printable(file_.tensors_[i].name), "' offset");
    if (offsets_[i] % alignment_ != 0) {
      return Malformed("", field, absl::StrCat("a multiple of ", alignment_),
                       absl::StrCat(offsets_[i]));
    }
    if (offsets_[i] > data_bytes || tensor_bytes_[i] > data_bytes - offsets_[i]) {
      return Malformed(
          "", field,
          absl::StrCat(tensor_bytes_[i], " bytes inside the data section of ", data_bytes),
          absl::StrCat("offset ", offsets_[i]));
    }
    file_.tensors_[i].bytes = file_.bytes_.substr(data_begin + offsets_[i], tensor_bytes_[i]);
    order.emplace_back(offsets_[i], i);
  }
  std::sort(order.begin(), order.end());
  for (size_t i = 1; i < order.size(); ++i) {
    const auto [previous_offset, previous] = order[i - 1];
    if (order[i].first < previous_offset + tensor_bytes_[previous]) {
      return Malformed(
          "", absl::StrCat("tensor '", Printable(file_.tensors_[order[i].second].name), "' offset"),
          absl::StrCat("bytes apart from tensor '", Printable(file_.tensors_[previous].name), "'"),
          "an overlap");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Parse(const std::string& name,
                                                          std::string_view bytes) {
  std::unique_ptr<GgufFile> file(new GgufFile());
  file->name_ = name;
  file->bytes_ = bytes;
  if (absl::Status status = Parser(*file).Run(); !status.ok()) return status;
  return file;
}

}  // namespace latchd
