#include "runtime/tokenizer/json_node.h"

#include "absl/strings/str_cat.h"

namespace latchd {
namespace {

constexpr size_t kShownBytes = 60;

// A value as an error shows it: its type and the beginning of its text.
std::string Describe(const nlohmann::json* value) {
  if (value == nullptr) return "nothing";
  if (value->is_object() || value->is_array()) {
    return absl::StrCat(value->is_object() ? "an object" : "an array", " of ", value->size());
  }
  std::string text = value->dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > kShownBytes) text = text.substr(0, kShownBytes) + "...";
  return text;
}

}  // namespace

JsonDocument::JsonDocument(std::string name, std::string_view text)
    : name_(std::move(name)),
      root_(nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false)) {
  if (root_.is_discarded()) {
    status_ = absl::InvalidArgumentError(
        absl::StrCat(name_, ": expected JSON, got ", text.size(), " bytes that are none"));
    root_ = nlohmann::json();
  }
}

JsonNode JsonNode::operator[](const std::string& field) const {
  const std::string path = path_.empty() ? field : absl::StrCat(path_, ".", field);
  if (!is_object()) return JsonNode(document_, nullptr, path);
  const auto it = value_->find(field);
  return JsonNode(document_, it == value_->end() ? nullptr : &*it, path);
}

std::string JsonNode::String() const {
  if (is_string()) return value_->get_ref<const std::string&>();
  Expected("a string");
  return {};
}

bool JsonNode::Bool(bool fallback) const {
  if (!present()) return fallback;
  if (value_->is_boolean()) return *value_->get_ptr<const nlohmann::json::boolean_t*>();
  Expected("true or false");
  return fallback;
}

int64_t JsonNode::Int(int64_t low, int64_t high) const {
  if (present() && value_->is_number_integer()) {
    // Unsigned values beyond int64 must not wrap around into the range.
    const auto* large = value_->get_ptr<const nlohmann::json::number_unsigned_t*>();
    const auto* any = value_->get_ptr<const nlohmann::json::number_integer_t*>();
    const bool fits = large == nullptr || *large <= static_cast<uint64_t>(INT64_MAX);
    if (fits && any != nullptr && *any >= low && *any <= high) return *any;
  }
  Expected(absl::StrCat("an integer in ", low, "..", high));
  return low;
}

std::vector<JsonNode> JsonNode::Array() const {
  std::vector<JsonNode> nodes;
  if (!is_array()) {
    Expected("an array");
    return nodes;
  }
  nodes.reserve(value_->size());
  for (size_t i = 0; i < value_->size(); ++i) {
    nodes.push_back(JsonNode(document_, &(*value_)[i], absl::StrCat(path_, "[", i, "]")));
  }
  return nodes;
}

const nlohmann::json* JsonNode::Object() const {
  if (is_object()) return value_;
  Expected("an object");
  return nullptr;
}

void JsonNode::Expected(const std::string& what) const {
  document_->Fail(absl::InvalidArgumentError(absl::StrCat(
      document_->name(), ": ", path_, ": expected ", what, ", got ", Describe(value_))));
}

void JsonNode::Unsupported(const std::string& what) const {
  document_->Fail(absl::UnimplementedError(
      absl::StrCat(document_->name(), ": ", path_, ": ", what, " is not supported")));
}

void JsonNode::Fail(const absl::Status& status) const {
  document_->Fail(absl::Status(status.code(), absl::StrCat(document_->name(), ": ", path_, ": ",
                                                           std::string(status.message()))));
}

}  // namespace latchd
