#include "client/cli/step_session.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/cli/format.h"
#include "client/cli/json.h"

namespace latchd::cli {

StepSession::StepSession(Context& context, client::Session session, uint64_t id,
                         int32_t top_logprobs)
    : context_(context), owned_(std::move(session)), id_(id), top_logprobs_(top_logprobs) {}

absl::Status StepSession::Prefill(const v1::PrefillRequest& request) {
  auto response = context_.client.Prefill(request, context_.call_options());
  if (!response.ok()) return response.status();
  length_tokens_ = response->length_tokens();
  next_ = response->next();
  ShowNext("prefill", response->timings());
  return absl::OkStatus();
}

absl::Status StepSession::Attach() { return Adopt(context_.client.GetSession(id_), "session"); }

absl::Status StepSession::Run(const StepCommand& command) {
  if (const auto* accept = std::get_if<AcceptCommand>(&command)) return Accept(accept->steps);
  if (const auto* force = std::get_if<ForceTokenCommand>(&command)) {
    return StepOnce(force->token_id);
  }
  if (const auto* force = std::get_if<ForceTextCommand>(&command)) return ForceText(force->text);
  if (const auto* cut = std::get_if<TruncateCommand>(&command)) {
    return Adopt(context_.client.Truncate(id_, cut->length_tokens), "truncate");
  }
  if (const auto* pick = std::get_if<AlternativeCommand>(&command)) {
    const int64_t count = next_.has_value() ? next_->top_size() : 0;
    if (pick->number > count) {
      return absl::InvalidArgumentError(
          absl::StrFormat("alternative: expected 1..%d, got %d", count, pick->number));
    }
    return StepOnce(next_->top(static_cast<int>(pick->number - 1)).token_id());
  }
  return RunPlain(std::get<PlainCommand>(command).kind);
}

absl::Status StepSession::RunPlain(PlainCommand::Kind kind) {
  switch (kind) {
    case PlainCommand::Kind::kShow: ShowNext("show", {}); break;
    case PlainCommand::Kind::kHelp: std::fputs(kStepHelp, stderr); break;
    case PlainCommand::Kind::kLatch: return Attach();
    case PlainCommand::Kind::kClear: return Adopt(context_.client.ClearLatch(id_), "clear");
    case PlainCommand::Kind::kReset: return Adopt(context_.client.Reset(id_), "reset");
    case PlainCommand::Kind::kText: {
      const auto text = context_.client.Detokenize(appended_);
      if (!text.ok()) return text.status();
      if (context_.json) {
        PrintJson({{"event", "text"}, {"text", *text}, {"token_ids", appended_}});
      } else {
        std::printf("%s\n", TerminalText(*text).c_str());
      }
      break;
    }
    case PlainCommand::Kind::kQuit: break;  // the loop's own
  }
  return absl::OkStatus();
}

absl::Status StepSession::Accept(int64_t steps) {
  for (int64_t i = 0; i < steps && !context_.interrupt.requested(); ++i) {
    if (absl::Status status = StepOnce(std::nullopt); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status StepSession::ForceText(const std::string& text) {
  v1::TokenizeRequest request;
  request.set_text(text);
  request.set_add_special_tokens(false);
  const auto tokens = context_.client.Tokenize(request);
  if (!tokens.ok()) return tokens.status();
  for (const int32_t id : tokens->token_ids()) {
    if (absl::Status status = StepOnce(id); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status StepSession::StepOnce(std::optional<int32_t> forced_token_id) {
  if (stream_ == nullptr) {
    stream_ = context_.client.OpenStepStream(id_, &context_.interrupt.cancellation());
  }
  client::StepOptions options;
  options.forced_token_id = forced_token_id;
  options.top_logprobs = top_logprobs_;
  const auto result = stream_->Step(options);
  if (!result.ok()) {
    if (client::GetViolation(result.status()).has_value()) poisoned_ = true;
    // The stream survives in-band refusals; one that ended says the same for ever, so the next step
    // opens another.
    if (absl::IsUnavailable(result.status()) || absl::IsCancelled(result.status()) ||
        absl::IsInternal(result.status())) {
      stream_.reset();
    }
    return result.status();
  }
  length_tokens_ = result->length_tokens();
  appended_.push_back(result->appended_token_id());
  next_ = result->next();
  ShowNext("step", result->timings());
  return absl::OkStatus();
}

absl::Status StepSession::Adopt(const absl::StatusOr<v1::Session>& session, const char* event) {
  if (!session.ok()) return session.status();
  const int64_t dropped = length_tokens_ - session->length_tokens();
  if (dropped > 0) {
    appended_.resize(appended_.size() - std::min<size_t>(appended_.size(), dropped));
  }
  length_tokens_ = session->length_tokens();
  poisoned_ = session->has_violation();
  if (!session->has_next_token_id()) {
    next_.reset();
  } else if (!next_.has_value() || next_->token_id() != session->next_token_id()) {
    next_.emplace().set_token_id(session->next_token_id());
  }
  if (context_.json) {
    Json json = ToJson(*session);
    json["event"] = event;
    PrintJson(json);
    return absl::OkStatus();
  }
  const std::string latch = poisoned_
                                ? "latch violated: " + EscapeControl(session->violation().message())
                                : "latch clear";
  const std::string next = next_.has_value() ? absl::StrFormat("next %d", next_->token_id())
                                             : "no next token: force one with #ID or =TEXT";
  std::printf("length %s of %s, %s, %s\n", FormatCount(length_tokens_).c_str(),
              FormatCount(session->capacity_tokens()).c_str(), next.c_str(), latch.c_str());
  return absl::OkStatus();
}

void StepSession::ShowNext(const char* event, const v1::Timings& timings) {
  if (context_.json) {
    Json json = {{"event", event}, {"length_tokens", length_tokens_}};
    if (!appended_.empty()) json["appended_token_id"] = appended_.back();
    json["next"] = next_.has_value() ? ToJson(*next_) : Json(nullptr);
    json["device_us"] = timings.device_us();
    PrintJson(json);
    return;
  }
  if (!next_.has_value()) {
    std::printf("length %s, no next token: force one with #ID or =TEXT\n",
                FormatCount(length_tokens_).c_str());
    return;
  }
  std::printf("length %s  next %d %s  logprob %.3f  step %s\n", FormatCount(length_tokens_).c_str(),
              next_->token_id(), Quote(next_->text()).c_str(), next_->logprob(),
              FormatMicros(static_cast<double>(timings.device_us())).c_str());
  Table table({"", "id", "piece", "logprob", "%"});
  for (int i = 0; i < next_->top_size(); ++i) {
    const v1::TokenLogprob& top = next_->top(i);
    table.AddRow({std::to_string(i + 1), std::to_string(top.token_id()), Quote(top.text()),
                  absl::StrFormat("%.3f", top.logprob()),
                  absl::StrFormat("%.1f", 100.0 * std::exp(top.logprob()))});
  }
  if (next_->top_size() > 0) std::fputs(table.ToString().c_str(), stdout);
}

}  // namespace latchd::cli
