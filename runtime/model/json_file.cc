#include "runtime/model/json_file.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/model/file_error.h"
#include "runtime/model/mapped_file.h"

namespace latchd {
namespace {

constexpr int kMaxDepth = 32;

// Brackets outside strings; a cheap over-estimate for malformed text, which the parser refuses
// anyway.
bool TooDeep(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxDepth) return true;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return false;
}

}  // namespace

std::string Shown(const nlohmann::json& value) {
  return Printable(value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
}

absl::StatusOr<nlohmann::json> ParseJsonObject(const std::string& name, std::string_view text) {
  if (TooDeep(text)) {
    return Malformed(name, "JSON nesting", absl::StrCat("at most ", kMaxDepth), "more");
  }
  nlohmann::json value =
      nlohmann::json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) return Malformed(name, "file", "JSON", "text that does not parse");
  if (!value.is_object()) return Malformed(name, "file", "a JSON object", value.type_name());
  return value;
}

absl::StatusOr<nlohmann::json> ReadJsonObject(const std::string& path, size_t max_bytes) {
  absl::StatusOr<std::string> text = ReadSmallFile(path, max_bytes);
  if (!text.ok()) return text.status();
  return ParseJsonObject(path, *text);
}

const nlohmann::json* JsonFields::Find(const char* key) const {
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void JsonFields::Fail(absl::Status status) {
  if (status_.ok()) status_ = std::move(status);
}

void JsonFields::Fail(const char* key, const std::string& expected, const std::string& got) {
  Fail(Malformed(file_, absl::StrCat(prefix_, key), expected, got));
}

int64_t JsonFields::Int(const char* key) {
  if (!Has(key)) Fail(key, "an integer", "nothing");
  return Int(key, 0);
}

int64_t JsonFields::Int(const char* key, int64_t fallback) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return fallback;
  const bool too_large = value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX;
  if (!value->is_number_integer() || too_large) {
    Fail(key, "an integer", Shown(*value));
    return fallback;
  }
  return value->get<int64_t>();
}

double JsonFields::Number(const char* key) {
  if (!Has(key)) Fail(key, "a number", "nothing");
  return Number(key, 0);
}

double JsonFields::Number(const char* key, double fallback) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return fallback;
  if (!value->is_number() ||
      !(std::abs(value->get<double>()) <= std::numeric_limits<float>::max())) {
    Fail(key, "a number", Shown(*value));
    return fallback;
  }
  return value->get<double>();
}

bool JsonFields::Bool(const char* key, bool fallback) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) {
    Fail(key, "true or false", Shown(*value));
    return fallback;
  }
  return value->get<bool>();
}

std::string JsonFields::Text(const char* key, const std::string& fallback) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return fallback;
  if (!value->is_string()) {
    Fail(key, "a string", Shown(*value));
    return fallback;
  }
  return value->get<std::string>();
}

}  // namespace latchd
