#include "client/cli/json.h"

#include <cctype>
#include <cstdio>

#include "client/errors.h"

namespace latchd::cli {
namespace {

// The enum's name without its prefix, in lower case; the number for a value newer than this build.
std::string LowerName(const std::string& name, const std::string& prefix, int value) {
  if (name.rfind(prefix, 0) != 0) return std::to_string(value);
  std::string lower = name.substr(prefix.size());
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

Json ToJson(const v1::Sampling& sampling) {
  Json json = Json::object();
  if (sampling.has_temperature()) json["temperature"] = sampling.temperature();
  if (sampling.has_top_k()) json["top_k"] = sampling.top_k();
  if (sampling.has_top_p()) json["top_p"] = sampling.top_p();
  if (sampling.has_min_p()) json["min_p"] = sampling.min_p();
  if (sampling.has_repetition_penalty()) {
    json["repetition_penalty"] = sampling.repetition_penalty();
  }
  if (sampling.has_presence_penalty()) json["presence_penalty"] = sampling.presence_penalty();
  if (sampling.has_frequency_penalty()) json["frequency_penalty"] = sampling.frequency_penalty();
  if (sampling.has_seed()) json["seed"] = sampling.seed();
  return json;
}

}  // namespace

bool IsUtf8(const std::string& text) {
  try {
    return !Json(text).dump().empty();
  } catch (const Json::type_error&) {
    return false;
  }
}

void PrintJson(const Json& json) {
  const std::string line = json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fflush(stdout);
}

Json ToJson(const v1::InvariantViolation& violation) {
  return {{"mask", violation.mask()},   {"invariants", client::InvariantNames(violation)},
          {"layer", violation.layer()}, {"row", violation.row()},
          {"step", violation.step()},   {"value", violation.value()},
          {"limit", violation.limit()}, {"message", violation.message()}};
}

Json LatchJson(const v1::InvariantViolation* violation) {
  if (violation == nullptr) return {{"state", "clear"}};
  return {{"state", "violated"}, {"violation", ToJson(*violation)}};
}

Json ToJson(const v1::Session& session) {
  Json json = {{"session_id", session.session_id()},
               {"state", StateName(session.state())},
               {"length_tokens", session.length_tokens()},
               {"capacity_tokens", session.capacity_tokens()}};
  json["next_token_id"] =
      session.has_next_token_id() ? Json(session.next_token_id()) : Json(nullptr);
  json["latch"] = LatchJson(session.has_violation() ? &session.violation() : nullptr);
  json["steps"] = session.steps();
  json["sampling"] = ToJson(session.sampling());
  json["ttl_ms"] = session.ttl_ms();
  json["created_unix_ms"] = session.created_unix_ms();
  json["last_used_unix_ms"] = session.last_used_unix_ms();
  json["owner"] = session.owner();
  return json;
}

Json ToJson(const v1::NextToken& next) {
  Json json = {{"token_id", next.token_id()}, {"text", next.text()}, {"logprob", next.logprob()}};
  if (next.top_size() > 0) json["top"] = Json::array();
  for (const v1::TokenLogprob& top : next.top()) {
    json["top"].push_back(
        {{"token_id", top.token_id()}, {"text", top.text()}, {"logprob", top.logprob()}});
  }
  return json;
}

std::string FinishReasonName(v1::FinishReason reason) {
  return LowerName(v1::FinishReason_Name(reason), "FINISH_REASON_", reason);
}

std::string StateName(v1::Session::State state) {
  return LowerName(v1::Session::State_Name(state), "STATE_", state);
}

}  // namespace latchd::cli
