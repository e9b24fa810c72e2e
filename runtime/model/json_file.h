#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace latchd {

// A JSON object from a file of at most `max_bytes`, nested at most 32 deep (checked before parsing,
// since a document of brackets would take many times its size). NOT_FOUND, or INVALID_ARGUMENT
// naming the file and what is wrong.
absl::StatusOr<nlohmann::json> ReadJsonObject(const std::string& path, size_t max_bytes);
absl::StatusOr<nlohmann::json> ParseJsonObject(const std::string& name, std::string_view text);

// Typed reads from one JSON object. The first error sticks and later reads return the fallback, so
// a caller reads everything and looks at status() once. A missing key and null are the same, as in
// transformers' configs.
class JsonFields {
 public:
  // `object` and `file` must outlive this; `prefix` goes before keys in errors ("rope_scaling.").
  JsonFields(const std::string& file, const nlohmann::json& object, std::string prefix = "")
      : file_(file), object_(object), prefix_(std::move(prefix)) {}

  bool Has(const char* key) const { return Find(key) != nullptr; }
  const nlohmann::json* Find(const char* key) const;  // null when missing or null

  int64_t Int(const char* key);  // required
  int64_t Int(const char* key, int64_t fallback);
  double Number(const char* key);  // required; refuses what float cannot hold
  double Number(const char* key, double fallback);
  bool Bool(const char* key, bool fallback);
  std::string Text(const char* key, const std::string& fallback);

  const absl::Status& status() const { return status_; }
  void Fail(const char* key, const std::string& expected, const std::string& got);
  void Fail(absl::Status status);

 private:
  const std::string& file_;
  const nlohmann::json& object_;
  std::string prefix_;
  absl::Status status_;
};

// The value as JSON text, cut short, for an error.
std::string Shown(const nlohmann::json& value);

}  // namespace latchd
