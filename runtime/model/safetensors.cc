#include "runtime/model/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "runtime/model/file_error.h"

namespace latchd {
namespace {

static_assert(std::endian::native == std::endian::little,
              "safetensors is read in place, little-endian");

constexpr size_t kPrefixBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the reference reader
constexpr size_t kMaxDimensions = 8;
constexpr std::string_view kMetadataKey = "__metadata__";

struct FileDtype {
  std::string_view name;
  uint64_t bytes;
  std::optional<StorageType> type;
};
constexpr FileDtype kDtypes[] = {
    {"F32", 4, StorageType::kF32},
    {"F16", 2, StorageType::kF16},
    {"BF16", 2, StorageType::kBF16},
    {"F64", 8, {}},
    {"I64", 8, {}},
    {"I32", 4, {}},
    {"I16", 2, {}},
    {"I8", 1, {}},
    {"U64", 8, {}},
    {"U32", 4, {}},
    {"U16", 2, {}},
    {"U8", 1, {}},
    {"BOOL", 1, {}},
    {"F8_E4M3", 1, {}},
    {"F8_E5M2", 1, {}},
    {"F8_E8M0", 1, {}},
};

struct Entry {
  std::string name;
  std::optional<std::string> dtype;
  std::optional<std::vector<uint64_t>> shape;
  std::optional<std::vector<uint64_t>> offsets;  // from the start of the data section
};

// Collects the header's entries event by event. A document tree would keep only the last of two
// tensors of one name, and would let a header of brackets take many times its size; here anything
// that is not {name: {"dtype": text, "shape": [numbers], "data_offsets": [numbers]}} stops the
// parse at once.
class HeaderHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<Entry> entries;
  absl::Status status;

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool number_integer(number_integer_t value) override { return Unexpected(absl::StrCat(value)); }
  bool number_float(number_float_t, const string_t& text) override {
    return Unexpected(Printable(text));
  }
  bool binary(binary_t&) override { return Unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (list_ == nullptr) return Unexpected(absl::StrCat(value));
    const bool is_shape = field_ == "shape";
    if (list_->size() >= (is_shape ? kMaxDimensions : 2)) {
      return Fail(
          Malformed("", Where(), is_shape ? "at most 8 dimensions" : "two numbers", "more"));
    }
    list_->push_back(value);
    return true;
  }

  bool string(string_t& value) override {
    if (depth_ == 2 && in_metadata_) return true;
    if (depth_ != 2 || list_ != nullptr || field_ != "dtype") return Unexpected("a string");
    if (entries.back().dtype.has_value()) return Unexpected("a second one");
    entries.back().dtype = value;
    return true;
  }

  bool start_object(std::size_t) override {
    if (depth_ >= 2 || list_ != nullptr) return Unexpected("an object");
    ++depth_;
    if (depth_ == 2) {
      field_.clear();
      if (!in_metadata_) entries.push_back({.name = tensor_});
    }
    return true;
  }

  bool end_object() override {
    --depth_;
    field_.clear();
    return true;
  }

  bool key(string_t& value) override {
    if (depth_ == 1) {
      tensor_ = value;
      in_metadata_ = value == kMetadataKey;
      if (!names_.insert(value).second)
        return Fail(Malformed("", Where(), "one entry", "a second one"));
      return true;
    }
    field_ = value;
    if (in_metadata_ || field_ == "dtype" || field_ == "shape" || field_ == "data_offsets")
      return true;
    return Fail(Malformed("", Where(), "dtype, shape or data_offsets", "another key"));
  }

  bool start_array(std::size_t) override {
    if (depth_ != 2 || in_metadata_ || list_ != nullptr ||
        (field_ != "shape" && field_ != "data_offsets")) {
      return Unexpected("an array");
    }
    std::optional<std::vector<uint64_t>>& list =
        field_ == "shape" ? entries.back().shape : entries.back().offsets;
    if (list.has_value()) return Unexpected("a second one");
    list_ = &list.emplace();
    return true;
  }

  bool end_array() override {
    list_ = nullptr;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return Fail(Malformed("", "header", "JSON", absl::StrCat("a syntax error at byte ", position)));
  }

 private:
  bool Fail(absl::Status failure) {
    if (status.ok()) status = std::move(failure);
    return false;
  }

  bool Unexpected(const std::string& got) {
    std::string expected = "an object of tensors";
    if (depth_ == 1) {
      expected = "an object";
    } else if (depth_ == 2) {
      expected =
          in_metadata_ || field_ == "dtype" ? "a string" : "an array of non-negative integers";
    }
    return Fail(Malformed("", Where(), expected, got));
  }

  std::string Where() const {
    if (depth_ == 0) return "header";
    std::string where = absl::StrCat("tensor '", Printable(tensor_), "'");
    if (!field_.empty()) absl::StrAppend(&where, " ", Printable(field_));
    return where;
  }

  int depth_ = 0;
  bool in_metadata_ = false;
  std::string tensor_, field_;
  std::vector<uint64_t>* list_ = nullptr;  // the array being read
  absl::flat_hash_set<std::string> names_;
};

// Turns a header entry into a tensor: its size must be that of its dtype and shape, and lie inside
// the data section.
absl::StatusOr<SafetensorsTensor> Resolve(Entry entry, std::string_view data) {
  const std::string where = absl::StrCat("tensor '", Printable(entry.name), "'");
  if (!entry.dtype.has_value()) return Malformed("", where, "a dtype", "none");
  if (!entry.shape.has_value()) return Malformed("", where, "a shape", "none");
  if (!entry.offsets.has_value() || entry.offsets->size() != 2) {
    return Malformed("", absl::StrCat(where, " data_offsets"), "two numbers",
                     absl::StrCat(entry.offsets.has_value() ? entry.offsets->size() : 0));
  }
  const auto* dtype = std::find_if(std::begin(kDtypes), std::end(kDtypes),
                                   [&](auto& known) { return known.name == *entry.dtype; });
  if (dtype == std::end(kDtypes)) {
    return absl::UnimplementedError(
        absl::StrCat(where, " dtype: unknown '", Printable(*entry.dtype), "'"));
  }
  uint64_t bytes = dtype->bytes;
  SafetensorsTensor tensor{
      .name = std::move(entry.name), .dtype = *entry.dtype, .type = dtype->type};
  for (const uint64_t extent : *entry.shape) {
    if (extent > INT64_MAX || __builtin_mul_overflow(bytes, extent, &bytes)) {
      return Malformed("", absl::StrCat(where, " shape"), "a size that fits the file",
                       absl::StrCat("extent ", extent));
    }
    tensor.shape.push_back(static_cast<int64_t>(extent));
  }
  const uint64_t begin = (*entry.offsets)[0], end = (*entry.offsets)[1];
  if (begin > end || end > data.size()) {
    return Malformed("", absl::StrCat(where, " data_offsets"),
                     absl::StrCat("a range inside the ", data.size(), " data bytes"),
                     absl::StrCat("[", begin, ", ", end, ")"));
  }
  if (end - begin != bytes) {
    return Malformed("", absl::StrCat(where, " data_offsets"),
                     absl::StrCat(bytes, " bytes for its dtype and shape"),
                     absl::StrCat(end - begin));
  }
  tensor.bytes = data.substr(begin, bytes);
  return tensor;
}

absl::Status CheckNoOverlap(const std::vector<SafetensorsTensor>& tensors) {
  std::vector<const SafetensorsTensor*> order;
  for (const SafetensorsTensor& tensor : tensors) {
    if (!tensor.bytes.empty()) order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(),
            [](auto* a, auto* b) { return a->bytes.data() < b->bytes.data(); });
  for (size_t i = 1; i < order.size(); ++i) {
    if (order[i]->bytes.data() < order[i - 1]->bytes.data() + order[i - 1]->bytes.size()) {
      return Malformed(
          "", absl::StrCat("tensor '", Printable(order[i]->name), "' data_offsets"),
          absl::StrCat("bytes apart from tensor '", Printable(order[i - 1]->name), "'"),
          "an overlap");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<SafetensorsTensor>> ParseTensors(std::string_view bytes) {
  if (bytes.size() < kPrefixBytes) {
    return Malformed("", "header length", "8 bytes", absl::StrCat(bytes.size()));
  }
  uint64_t header_bytes;
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  const uint64_t limit = std::min<uint64_t>(bytes.size() - kPrefixBytes, kMaxHeaderBytes);
  if (header_bytes > limit) {
    return Malformed("", "header length", absl::StrCat("at most ", limit),
                     absl::StrCat(header_bytes));
  }
  HeaderHandler handler;
  const std::string_view header = bytes.substr(kPrefixBytes, header_bytes);
  // The reader pads headers with spaces, which JSON allows. sax_parse reports through the handler
  // and does not throw.
  nlohmann::json::sax_parse(header.begin(), header.end(), &handler);
  if (!handler.status.ok()) return handler.status;

  const std::string_view data = bytes.substr(kPrefixBytes + header_bytes);
  std::vector<SafetensorsTensor> tensors;
  tensors.reserve(handler.entries.size());
  for (Entry& entry : handler.entries) {
    absl::StatusOr<SafetensorsTensor> tensor = Resolve(std::move(entry), data);
    if (!tensor.ok()) return tensor.status();
    tensors.push_back(*std::move(tensor));
  }
  if (absl::Status status = CheckNoOverlap(tensors); !status.ok()) return status;
  return tensors;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  absl::StatusOr<std::unique_ptr<MappedFile>> mapped = MappedFile::Open(path);
  if (!mapped.ok()) return mapped.status();
  absl::StatusOr<std::unique_ptr<SafetensorsFile>> file = Parse(path, (*mapped)->bytes());
  if (file.ok()) (*file)->file_ = *std::move(mapped);
  return file;
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Parse(const std::string& name,
                                                                        std::string_view bytes) {
  absl::StatusOr<std::vector<SafetensorsTensor>> tensors = ParseTensors(bytes);
  if (!tensors.ok()) return WithPrefix(name, tensors.status());
  std::unique_ptr<SafetensorsFile> file(new SafetensorsFile());
  file->name_ = name;
  file->bytes_ = bytes;
  file->tensors_ = *std::move(tensors);
  return file;
}

}  // namespace latchd
