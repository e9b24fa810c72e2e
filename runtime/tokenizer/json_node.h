#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace latchd {

// Checked reading of a JSON document from a stranger. The first error wins and sticks in the
// document; after it the accessors return empty values, so a reader checks once, at the end.
class JsonDocument {
 public:
  // INVALID_ARGUMENT in status() when `text` is no JSON.
  JsonDocument(std::string name, std::string_view text);

  const absl::Status& status() const { return status_; }
  void Fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  const std::string& name() const { return name_; }
  const nlohmann::json& root() const { return root_; }

 private:
  std::string name_;
  nlohmann::json root_;
  absl::Status status_;
};

// A value in a document, and where it stands ("model.merges[3]"). Cheap to copy; must not outlive
// the document.
class JsonNode {
 public:
  explicit JsonNode(JsonDocument& document) : JsonNode(&document, &document.root(), "") {}

  // False when the field is missing or null.
  bool present() const { return value_ != nullptr && !value_->is_null(); }
  bool is_string() const { return present() && value_->is_string(); }
  bool is_object() const { return present() && value_->is_object(); }
  bool is_array() const { return present() && value_->is_array(); }
  // Not an error when missing; that shows when the result is read.
  JsonNode operator[](const std::string& field) const;

  std::string String() const;
  std::string String(const std::string& fallback) const { return present() ? String() : fallback; }
  bool Bool(bool fallback) const;
  int64_t Int(int64_t low, int64_t high) const;
  std::vector<JsonNode> Array() const;
  // The raw value, for large tables; null after Expect has failed.
  const nlohmann::json* Object() const;
  const std::string& path() const { return path_; }

  // Records INVALID_ARGUMENT "file: path: expected <what>, got <value>".
  void Expected(const std::string& what) const;
  // Records UNIMPLEMENTED "file: path: <what> is not supported".
  void Unsupported(const std::string& what) const;
  // Records `status` with file and path in front.
  void Fail(const absl::Status& status) const;

 private:
  JsonNode(JsonDocument* document, const nlohmann::json* value, std::string path)
      : document_(document), value_(value), path_(std::move(path)) {}

  JsonDocument* document_;
  const nlohmann::json* value_;  // null: missing
  std::string path_;
};

}  // namespace latchd
