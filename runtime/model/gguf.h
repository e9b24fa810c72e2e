#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/model/dequantize.h"
#include "runtime/model/mapped_file.h"

namespace latchd {

// Value types of GGUF metadata, numbered as in the file (ggml/docs/gguf.md).
enum class GgufType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};
std::string_view Name(GgufType type);

// One metadata value, checked at Open but not copied: it points into the file. Views it returns
// live as long as the GgufFile. The conversions return INVALID_ARGUMENT (naming key, expected and
// actual type) when the type is another.
struct GgufValue {
  std::string key;
  GgufType type = GgufType::kUint8;
  GgufType element_type = GgufType::kUint8;  // arrays
  uint64_t count = 1;                        // arrays: elements
  std::string_view bytes;  // the value; a string without its length; an array's elements

  absl::StatusOr<int64_t> Int() const;   // any integer type that fits int64
  absl::StatusOr<double> Float() const;  // a float or an integer type
  absl::StatusOr<bool> Bool() const;
  absl::StatusOr<std::string_view> String() const;  // any bytes: UTF-8 is not checked
  absl::StatusOr<std::vector<std::string_view>> Strings() const;
  absl::StatusOr<std::vector<int64_t>> Ints() const;
  absl::StatusOr<std::vector<float>> Floats() const;

 private:
  absl::Status WrongType(std::string_view expected) const;
};

struct GgufTensor {
  std::string name;
  StorageType type = StorageType::kF32;
  std::vector<int64_t>
      shape;               // row-major, slowest dimension first: the reverse of the file's order
  std::string_view bytes;  // inside the file
};

// A GGUF v2 or v3 file (little-endian). Open checks every count, length, type, offset and size
// before it is used, so memory stays proportional to the file. Immutable and thread-safe.
class GgufFile {
 public:
  // NOT_FOUND, INVALID_ARGUMENT (malformed: file, field, expected, got), UNIMPLEMENTED (a version,
  // byte order or tensor type that latchd does not read).
  static absl::StatusOr<std::unique_ptr<GgufFile>> Open(const std::string& path);
  // The same from memory that outlives the result; `name` stands for the path in errors.
  static absl::StatusOr<std::unique_ptr<GgufFile>> Parse(const std::string& name,
                                                         std::string_view bytes);

  // Null when absent.
  const GgufValue* Find(std::string_view key) const;

  // Find and convert. NOT_FOUND (naming file and key) when absent, INVALID_ARGUMENT when of another
  // type.
  absl::StatusOr<int64_t> Int(std::string_view key) const;
  absl::StatusOr<double> Float(std::string_view key) const;
  absl::StatusOr<bool> Bool(std::string_view key) const;
  absl::StatusOr<std::string_view> String(std::string_view key) const;
  absl::StatusOr<std::vector<std::string_view>> Strings(std::string_view key) const;
  absl::StatusOr<std::vector<int64_t>> Ints(std::string_view key) const;
  absl::StatusOr<std::vector<float>> Floats(std::string_view key) const;

  const std::map<std::string, GgufValue, std::less<>>& metadata() const { return metadata_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }  // in the file's order
  const std::string& name() const { return name_; }
  size_t file_bytes() const { return bytes_.size(); }
  // Null when parsed from memory.
  const MappedFile* mapping() const { return file_.get(); }

 private:
  class Parser;
  GgufFile() = default;
  template <typename T>
  absl::StatusOr<T> Get(std::string_view key,
                        absl::StatusOr<T> (GgufValue::*convert)() const) const;

  std::unique_ptr<MappedFile> file_;
  std::string name_;
  std::string_view bytes_;
  std::map<std::string, GgufValue, std::less<>> metadata_;
  std::vector<GgufTensor> tensors_;
};

}  // namespace latchd
