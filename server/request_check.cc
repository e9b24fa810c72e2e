#include "server/request_check.h"

#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"
#include "server/utf8.h"

namespace latchd {
namespace {

template <typename Got>
absl::Status Bad(const std::string& field, const std::string& expected, const Got& got) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": expected ", expected, ", got ", got));
}

absl::Status CheckTopLogprobs(int32_t count) {
  if (count >= 0 && count <= kMaxTopLogprobs) return absl::OkStatus();
  return Bad("top_logprobs", absl::StrCat("0..", kMaxTopLogprobs), count);
}

absl::Status CheckToken(int32_t id, int64_t vocab, const std::string& field) {
  if (id >= 0 && id < vocab) return absl::OkStatus();
  return Bad(field, absl::StrCat("a token id in 0..", vocab - 1), id);
}

uint64_t RandomSeed() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

// The tokens of a `text` or `tokens` oneof, for PrefillRequest and GenerateRequest alike.
template <typename Request>
absl::StatusOr<std::vector<int32_t>> PromptTokens(const Request& request, const ModelLimits& model,
                                                  bool add_special_default) {
  switch (request.prompt_case()) {
    case Request::kText: {
      if (model.tokenizer == nullptr) {
        return absl::InvalidArgumentError(
            "text: expected token ids in `tokens`, since this model has no tokenizer, got text");
      }
      absl::Status utf8 = CheckUtf8(request.text(), "text");
      if (!utf8.ok()) return utf8;
      EncodeOptions options;
      options.add_special_tokens =
          request.has_add_special_tokens() ? request.add_special_tokens() : add_special_default;
      auto tokens = model.tokenizer->Encode(request.text(), options);
      if (!tokens.ok()) {
        return absl::Status(tokens.status().code(),
                            absl::StrCat("text: ", std::string(tokens.status().message())));
      }
      return tokens;
    }
    case Request::kTokens: {
      if (request.has_add_special_tokens() && request.add_special_tokens()) {
        return Bad("add_special_tokens", "it only with `text`", "it with `tokens`");
      }
      absl::Status status = CheckTokenIds(request.tokens().ids(), model.vocab, "tokens.ids");
      if (!status.ok()) return status;
      return std::vector<int32_t>(request.tokens().ids().begin(), request.tokens().ids().end());
    }
    case Request::PROMPT_NOT_SET: break;
  }
  return std::vector<int32_t>();
}

absl::Status CheckStops(const v1::GenerateRequest& request, int64_t vocab) {
  if (static_cast<size_t>(request.stop_size()) > kMaxStopStrings) {
    return Bad("stop", absl::StrCat("at most ", kMaxStopStrings, " strings"), request.stop_size());
  }
  for (int i = 0; i < request.stop_size(); ++i) {
    const std::string& stop = request.stop(i);
    const std::string field = absl::StrCat("stop[", i, "]");
    if (stop.empty() || stop.size() > kMaxStopBytes) {
      return Bad(field, absl::StrCat("1..", kMaxStopBytes, " bytes"), stop.size());
    }
    absl::Status status = CheckUtf8(stop, field);
    if (!status.ok()) return status;
  }
  if (static_cast<size_t>(request.stop_token_ids_size()) > kMaxStopTokens) {
    return Bad("stop_token_ids", absl::StrCat("at most ", kMaxStopTokens, " ids"),
               request.stop_token_ids_size());
  }
  return CheckTokenIds(request.stop_token_ids(), vocab, "stop_token_ids");
}

}  // namespace

absl::Status CheckUtf8(const std::string& text, const std::string& field) {
  const auto bad = FirstInvalidUtf8(text);
  if (!bad) return absl::OkStatus();
  return Bad(field, "UTF-8", absl::StrCat("an invalid byte at offset ", *bad));
}

absl::Status CheckTokenIds(const google::protobuf::RepeatedField<int32_t>& ids, int64_t vocab,
                           const std::string& field) {
  for (int i = 0; i < ids.size(); ++i) {
    // The name is built for a bad id only: prompts hold many thousands.
    if (ids[i] < 0 || ids[i] >= vocab) {
      return CheckToken(ids[i], vocab, absl::StrCat(field, "[", i, "]"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSessionId(uint64_t session_id) {
  if (session_id != 0) return absl::OkStatus();
  return Bad("session_id", "the id that OpenSession returned", 0);
}

absl::StatusOr<SamplingOptions> CheckSampling(const v1::Sampling& sampling, int64_t vocab) {
  SamplingOptions out;
  if (sampling.has_temperature()) out.temperature = sampling.temperature();
  if (sampling.has_top_k()) out.top_k = sampling.top_k();
  if (sampling.has_top_p()) out.top_p = sampling.top_p();
  if (sampling.has_min_p()) out.min_p = sampling.min_p();
  if (sampling.has_repetition_penalty()) out.repetition_penalty = sampling.repetition_penalty();
  if (sampling.has_presence_penalty()) out.presence_penalty = sampling.presence_penalty();
  if (sampling.has_frequency_penalty()) out.frequency_penalty = sampling.frequency_penalty();
  out.logit_bias.assign(sampling.logit_bias().begin(), sampling.logit_bias().end());
  out.seed = sampling.has_seed() ? sampling.seed() : RandomSeed();
  if (absl::Status status = CheckSampling(out, vocab); !status.ok()) return status;
  return out;
}

absl::StatusOr<SessionOptions> CheckOpenSession(const v1::OpenSessionRequest& request,
                                                int64_t vocab) {
  SessionOptions out;
  if (request.capacity_tokens() < 0) {
    return Bad("capacity_tokens", "capacity_tokens >= 0", request.capacity_tokens());
  }
  if (request.ttl_ms() < 0) return Bad("ttl_ms", "ttl_ms >= 0", request.ttl_ms());
  if (request.owner().size() > kMaxOwnerBytes) {
    return Bad("owner", absl::StrCat("at most ", kMaxOwnerBytes, " bytes"), request.owner().size());
  }
  absl::Status status = CheckUtf8(request.owner(), "owner");
  if (!status.ok()) return status;
  auto sampling = CheckSampling(request.sampling(), vocab);
  if (!sampling.ok()) return sampling.status();
  out.capacity_tokens = request.capacity_tokens();
  out.ttl = absl::Milliseconds(request.ttl_ms());
  out.owner = request.owner();
  out.sampling = *std::move(sampling);
  return out;
}

absl::Status CheckTruncate(const v1::TruncateRequest& request) {
  absl::Status status = CheckSessionId(request.session_id());
  if (!status.ok()) return status;
  if (request.length_tokens() >= 0) return absl::OkStatus();
  return Bad("length_tokens", "length_tokens >= 0", request.length_tokens());
}

absl::StatusOr<StepRequest> CheckStep(const v1::StepRequest& request, int64_t vocab) {
  StepRequest out;
  absl::Status status = CheckSessionId(request.session_id());
  if (status.ok()) status = CheckTopLogprobs(request.top_logprobs());
  if (status.ok() && request.has_forced_token_id()) {
    status = CheckToken(request.forced_token_id(), vocab, "forced_token_id");
    out.forced_token = request.forced_token_id();
  }
  if (!status.ok()) return status;
  out.session = request.session_id();
  out.top_logprobs = request.top_logprobs();
  out.want_logits = request.want_logits();
  return out;
}

absl::StatusOr<PrefillRequest> CheckPrefill(const v1::PrefillRequest& request,
                                            const ModelLimits& model, bool add_special_default) {
  PrefillRequest out;
  absl::Status status = CheckSessionId(request.session_id());
  if (status.ok()) status = CheckTopLogprobs(request.top_logprobs());
  if (!status.ok()) return status;
  auto tokens = PromptTokens(request, model, add_special_default);
  if (!tokens.ok()) return tokens.status();
  if (tokens->empty() && !request.append_next_token()) {
    return Bad("prompt", "at least one token, or append_next_token", "none");
  }
  out.session = request.session_id();
  out.tokens = *std::move(tokens);
  out.append_next_token = request.append_next_token();
  out.top_logprobs = request.top_logprobs();
  out.want_logits = request.want_logits();
  return out;
}

absl::StatusOr<GenerateRequest> CheckGenerate(const v1::GenerateRequest& request,
                                              const ModelLimits& model, bool add_special_default) {
  GenerateRequest out;
  absl::Status status = CheckTopLogprobs(request.top_logprobs());
  if (status.ok() && request.max_tokens() < 0) {
    status = Bad("max_tokens", "max_tokens >= 0", request.max_tokens());
  }
  if (status.ok()) status = CheckStops(request, model.vocab);
  if (status.ok() && request.session_id() == 0 && request.append_next_token()) {
    status = Bad("append_next_token", "false when session_id is 0", "true");
  }
  if (!status.ok()) return status;
  if (model.tokenizer == nullptr && request.stop_size() > 0) {
    return Bad("stop", "none, since this model has no tokenizer", request.stop_size());
  }
  if (request.has_sampling()) {
    auto sampling = CheckSampling(request.sampling(), model.vocab);
    if (!sampling.ok()) return sampling.status();
    out.sampling = *std::move(sampling);
  }
  auto tokens = PromptTokens(request, model, add_special_default);
  if (!tokens.ok()) return tokens.status();
  if (tokens->empty() && request.session_id() == 0) {
    return Bad("prompt", "at least one token when session_id is 0", "none");
  }
  out.session = request.session_id();
  out.prompt = *std::move(tokens);
  out.append_next_token = request.append_next_token();
  out.max_tokens = request.max_tokens() == 0 ? kDefaultMaxTokens : request.max_tokens();
  out.stop_tokens.assign(request.stop_token_ids().begin(), request.stop_token_ids().end());
  out.stop_strings.assign(request.stop().begin(), request.stop().end());
  out.ignore_eos = request.ignore_eos();
  out.top_logprobs = request.top_logprobs();
  return out;
}

absl::StatusOr<FaultRequest> CheckInjectFault(const v1::InjectFaultRequest& request) {
  FaultRequest out;
  // Values may be as wrong as the test likes; only the session must be named, where one is meant.
  const bool needs_session = request.has_seqlens_k() || request.has_position() ||
                             request.has_token_id() || request.has_page();
  if (needs_session) {
    absl::Status status = CheckSessionId(request.session_id());
    if (!status.ok()) return status;
  }
  out.session = request.session_id();
  if (request.has_seqlens_k()) out.seqlens_k = request.seqlens_k();
  if (request.has_position()) out.position = request.position();
  if (request.has_token_id()) out.token = request.token_id();
  if (request.has_page()) out.page = request.page();
  if (request.has_norm_weight()) out.norm_weight = request.norm_weight();
  out.restore_weights = request.restore_weights();
  return out;
}

absl::StatusOr<std::vector<ChatMessage>> CheckChat(const v1::ApplyChatTemplateRequest& request) {
  const size_t count = static_cast<size_t>(request.messages_size());
  if (count == 0 || count > kMaxChatMessages) {
    return Bad("messages", absl::StrCat("1..", kMaxChatMessages, " messages"), count);
  }
  std::vector<ChatMessage> out;
  for (size_t i = 0; i < count; ++i) {
    const v1::ChatMessage& message = request.messages(static_cast<int>(i));
    const std::string& role = message.role();
    if (role != "system" && role != "user" && role != "assistant") {
      return Bad(absl::StrCat("messages[", i, "].role"), "system, user or assistant",
                 role.empty() ? "nothing" : "another role");
    }
    absl::Status status = CheckUtf8(message.content(), absl::StrCat("messages[", i, "].content"));
    if (!status.ok()) return status;
    out.push_back({role, message.content()});
  }
  return out;
}

}  // namespace latchd
