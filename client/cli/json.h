#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "latchd/v1/decode.pb.h"

namespace latchd::cli {

using Json = nlohmann::ordered_json;

// Protobuf text fields must be UTF-8, and an error of its own would not say which.
bool IsUtf8(const std::string& text);

// One object on one line of stdout. Bytes that are not UTF-8 become U+FFFD, so that the line is
// always valid JSON.
void PrintJson(const Json& json);

Json ToJson(const v1::InvariantViolation& violation);
// {"state": "clear"} or {"state": "violated", "violation": {...}}.
Json LatchJson(const v1::InvariantViolation* violation);
Json ToJson(const v1::Session& session);
Json ToJson(const v1::NextToken& next);  // without logits

// "length", "stop_token", "stop_string", "capacity", "violation".
std::string FinishReasonName(v1::FinishReason reason);
// "idle", "poisoned", ...
std::string StateName(v1::Session::State state);

}  // namespace latchd::cli
