#include "runtime/model/gguf.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/model/file_error.h"

namespace latchd {
namespace {

constexpr std::string_view kTypeNames[] = {"uint8",  "int8",    "uint16", "int16",  "uint32",
                                           "int32",  "float32", "bool",   "string", "array",
                                           "uint64", "int64",   "float64"};

template <typename T>
T Load(const char* data) {
  T value;
  std::memcpy(&value, data, sizeof(value));
  return value;
}

// Calls f with a typed reader for the elements of a number type; false for types that are not
// numbers.
template <typename F>
bool WithNumberType(GgufType type, F&& f) {
  switch (type) {
    case GgufType::kUint8: f(Load<uint8_t>); return true;
    case GgufType::kInt8: f(Load<int8_t>); return true;
    case GgufType::kUint16: f(Load<uint16_t>); return true;
    case GgufType::kInt16: f(Load<int16_t>); return true;
    case GgufType::kUint32: f(Load<uint32_t>); return true;
    case GgufType::kInt32: f(Load<int32_t>); return true;
    case GgufType::kUint64: f(Load<uint64_t>); return true;
    case GgufType::kInt64: f(Load<int64_t>); return true;
    case GgufType::kFloat32: f(Load<float>); return true;
    case GgufType::kFloat64: f(Load<double>); return true;
    case GgufType::kBool:
    case GgufType::kString:
    case GgufType::kArray: return false;
  }
  return false;
}

bool IsFloat(GgufType type) { return type == GgufType::kFloat32 || type == GgufType::kFloat64; }

}  // namespace

std::string_view Name(GgufType type) {
  const auto index = static_cast<size_t>(type);
  return index < std::size(kTypeNames) ? kTypeNames[index] : "unknown";
}

absl::Status GgufValue::WrongType(std::string_view expected) const {
  std::string got(Name(type));
  if (type == GgufType::kArray) got = absl::StrCat("array of ", std::string(Name(element_type)));
  return Malformed("", absl::StrCat("metadata '", Printable(key), "'"), std::string(expected), got);
}

absl::StatusOr<int64_t> GgufValue::Int() const {
  if (IsFloat(type)) return WrongType("an integer");
  if (type == GgufType::kUint64 && Load<uint64_t>(bytes.data()) > INT64_MAX) {
    return Malformed("", absl::StrCat("metadata '", Printable(key), "'"), "an integer below 2^63",
                     absl::StrCat(Load<uint64_t>(bytes.data())));
  }
  int64_t value = 0;
  const bool is_number =
      WithNumberType(type, [&](auto load) { value = static_cast<int64_t>(load(bytes.data())); });
  if (!is_number) return WrongType("an integer");
  return value;
}

absl::StatusOr<double> GgufValue::Float() const {
  double value = 0;
  const bool is_number =
      WithNumberType(type, [&](auto load) { value = static_cast<double>(load(bytes.data())); });
  if (!is_number) return WrongType("a number");
  return value;
}

absl::StatusOr<bool> GgufValue::Bool() const {
  if (type != GgufType::kBool) return WrongType("bool");
  return bytes[0] != 0;
}

absl::StatusOr<std::string_view> GgufValue::String() const {
  if (type != GgufType::kString) return WrongType("string");
  return bytes;
}

absl::StatusOr<std::vector<std::string_view>> GgufValue::Strings() const {
  if (type != GgufType::kArray || element_type != GgufType::kString)
    return WrongType("array of string");
  std::vector<std::string_view> out;
  out.reserve(count);
  const char* at = bytes.data();
  for (uint64_t i = 0; i < count; ++i) {  // lengths were checked by the parser
    const auto length = Load<uint64_t>(at);
    out.emplace_back(at + sizeof(length), length);
    at += sizeof(length) + length;
  }
  return out;
}

absl::StatusOr<std::vector<int64_t>> GgufValue::Ints() const {
  if (type != GgufType::kArray || IsFloat(element_type)) return WrongType("array of integers");
  std::vector<int64_t> out;
  bool fits = true;
  const bool is_number = WithNumberType(element_type, [&](auto load) {
    out.reserve(count);
    const size_t stride = bytes.size() / std::max<uint64_t>(count, 1);
    for (uint64_t i = 0; i < count; ++i) {
      const auto value = load(bytes.data() + i * stride);
      fits = fits && !(value > 0 && static_cast<uint64_t>(value) > INT64_MAX);
      out.push_back(static_cast<int64_t>(value));
    }
  });
  if (!is_number) return WrongType("array of integers");
  if (!fits) return WrongType("array of integers below 2^63");
  return out;
}

absl::StatusOr<std::vector<float>> GgufValue::Floats() const {
  if (type != GgufType::kArray) return WrongType("array of numbers");
  std::vector<float> out;
  const bool is_number = WithNumberType(element_type, [&](auto load) {
    out.reserve(count);
    const size_t stride = bytes.size() / std::max<uint64_t>(count, 1);
    for (uint64_t i = 0; i < count; ++i)
      out.push_back(static_cast<float>(load(bytes.data() + i * stride)));
  });
  if (!is_number) return WrongType("array of numbers");
  return out;
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Open(const std::string& path) {
  absl::StatusOr<std::unique_ptr<MappedFile>> mapped = MappedFile::Open(path);
  if (!mapped.ok()) return mapped.status();
  absl::StatusOr<std::unique_ptr<GgufFile>> file = Parse(path, (*mapped)->bytes());
  if (file.ok()) (*file)->file_ = *std::move(mapped);
  return file;
}

const GgufValue* GgufFile::Find(std::string_view key) const {
  const auto found = metadata_.find(key);
  return found == metadata_.end() ? nullptr : &found->second;
}

template <typename T>
absl::StatusOr<T> GgufFile::Get(std::string_view key,
                                absl::StatusOr<T> (GgufValue::*convert)() const) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) {
    return absl::NotFoundError(
        absl::StrCat(name_, ": metadata '", std::string(key), "' is missing"));
  }
  absl::StatusOr<T> out = (value->*convert)();
  if (!out.ok()) return WithPrefix(name_, out.status());
  return out;
}

absl::StatusOr<int64_t> GgufFile::Int(std::string_view key) const {
  return Get(key, &GgufValue::Int);
}
absl::StatusOr<double> GgufFile::Float(std::string_view key) const {
  return Get(key, &GgufValue::Float);
}
absl::StatusOr<bool> GgufFile::Bool(std::string_view key) const {
  return Get(key, &GgufValue::Bool);
}
absl::StatusOr<std::string_view> GgufFile::String(std::string_view key) const {
  return Get(key, &GgufValue::String);
}
absl::StatusOr<std::vector<std::string_view>> GgufFile::Strings(std::string_view key) const {
  return Get(key, &GgufValue::Strings);
}
absl::StatusOr<std::vector<int64_t>> GgufFile::Ints(std::string_view key) const {
  return Get(key, &GgufValue::Ints);
}
absl::StatusOr<std::vector<float>> GgufFile::Floats(std::string_view key) const {
  return Get(key, &GgufValue::Floats);
}

}  // namespace latchd
