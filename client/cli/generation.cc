#include "client/cli/generation.h"

#include <cstdio>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/cli/format.h"
#include "client/cli/stats.h"

namespace latchd::cli {
namespace {

void Print(const std::string& text) {
  if (text.empty()) return;
  // A file or pipe gets the exact bytes; a terminal must not be steered by them.
  const std::string shown = StdoutIsTerminal() ? TerminalText(text) : text;
  std::fwrite(shown.data(), 1, shown.size(), stdout);
  std::fflush(stdout);
}

}  // namespace

absl::StatusOr<Generation> RunGeneration(Context& context, const v1::GenerateRequest& request,
                                         Echo echo, Generation* partial) {
  Generation own;
  Generation& generation = partial != nullptr ? *partial : own;
  const absl::Time start = absl::Now();
  absl::Time first = start;
  auto finish = context.client.Generate(
      request,
      [&](const v1::GenerateResponse::Token& token) {
        if (generation.tokens.empty()) {
          first = absl::Now();
        } else if (token.has_timings()) {  // the first token is the prefill's
          generation.step_us.push_back(static_cast<double>(token.timings().device_us()));
        }
        generation.tokens.push_back(token.next());
        generation.text += token.text();
        if (echo == Echo::kText) Print(token.text());
        if (echo == Echo::kIds) Print(std::to_string(token.next().token_id()) + "\n");
        return true;
      },
      context.call_options());
  generation.total_ms = absl::ToDoubleMilliseconds(absl::Now() - start);
  generation.ttft_ms = absl::ToDoubleMilliseconds(first - start);
  if (!finish.ok()) return finish.status();
  // By the daemon's clock: here, tokens of a fast model arrive in bursts.
  const double decode_s = finish->usage().decode_us() * 1e-6;
  if (decode_s > 0.0) generation.tokens_per_s = (generation.tokens.size() - 1) / decode_s;
  generation.text += finish->text();
  if (echo == Echo::kText) Print(finish->text());
  generation.finish = *std::move(finish);
  return generation;
}

Json ToJson(const Generation& generation) {
  const v1::GenerateResponse::Finish& finish = generation.finish;
  Json ids = Json::array();
  for (const v1::NextToken& token : generation.tokens) ids.push_back(token.token_id());
  Json json = {{"text", generation.text},
               {"token_ids", ids},
               {"finish_reason", FinishReasonName(finish.reason())},
               {"usage",
                {{"prompt_tokens", finish.usage().prompt_tokens()},
                 {"generated_tokens", finish.usage().generated_tokens()},
                 {"prefill_us", finish.usage().prefill_us()},
                 {"decode_us", finish.usage().decode_us()}}},
               {"timings",
                {{"tokens_per_s", generation.tokens_per_s},
                 {"ttft_ms", generation.ttft_ms},
                 {"total_ms", generation.total_ms},
                 {"step_p50_us", Percentile(generation.step_us, 50)},
                 {"step_p99_us", Percentile(generation.step_us, 99)}}},
               {"latch", LatchJson(generation.violated() ? &finish.violation() : nullptr)},
               {"seed", finish.seed()},
               {"session_id", finish.session_id()}};
  if (!finish.matched_stop().empty()) json["matched_stop"] = finish.matched_stop();
  if (!generation.tokens.empty() && generation.tokens.front().top_size() > 0) {
    json["tokens"] = Json::array();
    for (const v1::NextToken& token : generation.tokens) json["tokens"].push_back(ToJson(token));
  }
  return json;
}

std::string SummaryLine(const Generation& generation) {
  return absl::StrFormat(
      "%d tokens, %.1f tok/s, TTFT %s, step p50 %s p99 %s, latch %s, %s", generation.tokens.size(),
      generation.tokens_per_s, FormatMicros(generation.ttft_ms * 1e3),
      FormatMicros(Percentile(generation.step_us, 50)),
      FormatMicros(Percentile(generation.step_us, 99)),
      generation.violated() ? "violated" : "clear", FinishReasonName(generation.finish.reason()));
}

}  // namespace latchd::cli
