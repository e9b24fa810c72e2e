#include <cstdio>
#include <string>
#include <vector>

#include "client/cli/command.h"
#include "client/cli/json.h"
#include "client/cli/line_reader.h"
#include "client/cli/sampling_flags.h"
#include "client/cli/step_session.h"

namespace latchd::cli {
namespace {

struct Options {
  std::optional<std::string> prompt;
  std::vector<int32_t> prompt_ids;
  uint64_t session = 0;
  int64_t capacity = 0;
  int32_t top_logprobs = 5;
  SamplingFlags sampling;
};

absl::StatusOr<client::Session> Open(const Options& options, Context& context) {
  if (options.session != 0) return client::Session();
  v1::OpenSessionRequest request;
  request.set_capacity_tokens(options.capacity);
  request.set_owner("latchctl step");
  *request.mutable_sampling() = options.sampling.ToProto();
  return context.client.OpenSession(request);
}

absl::Status Start(const Options& options, StepSession& session) {
  v1::PrefillRequest request;
  request.set_session_id(session.id());
  request.set_top_logprobs(options.top_logprobs);
  if (options.prompt.has_value()) {
    request.set_text(*options.prompt);
  } else if (!options.prompt_ids.empty()) {
    request.mutable_tokens()->mutable_ids()->Add(options.prompt_ids.begin(),
                                                 options.prompt_ids.end());
  } else {
    return session.Attach();
  }
  return session.Prefill(request);
}

int Run(const Options& options, Context& context) {
  auto opened = Open(options, context);
  if (!opened.ok()) return ReportError(opened.status());
  const uint64_t id = options.session != 0 ? options.session : opened->id();
  StepSession session(context, *std::move(opened), id, options.top_logprobs);
  if (absl::Status status = Start(options, session); !status.ok()) {
    return ReportError(status, options.session);
  }
  LineReader lines(context.interrupt);
  if (lines.interactive()) std::fputs(kStepHelp, stderr);
  int failed = kOk;
  while (const auto line = lines.Next("[" + std::to_string(session.length_tokens()) + "] ")) {
    const auto command = ParseStepCommand(*line);
    absl::Status status = command.status();
    if (command.ok()) {
      const auto* plain = std::get_if<PlainCommand>(&*command);
      if (plain != nullptr && plain->kind == PlainCommand::Kind::kQuit) break;
      status = session.Run(*command);
    }
    if (status.ok()) continue;
    if (context.json) {
      const auto violation = client::GetViolation(status);
      PrintJson({{"event", violation.has_value() ? "violation" : "error"},
                 {"code", absl::StatusCodeToString(status.code())},
                 {"message", std::string(status.message())},
                 {"latch", LatchJson(violation.has_value() ? &*violation : nullptr)}});
    }
    const int code = ReportError(status, session.id());
    if (code == kInterrupted && lines.interactive()) {
      context.interrupt.Rearm();
      continue;
    }
    if (code != kViolation) failed = code;
    if (code == kInterrupted || code == kCannotConnect) return code;
  }
  if (context.interrupt.requested()) return kInterrupted;
  // A script learns whether it left the session poisoned; a person has seen the messages.
  if (lines.interactive()) return kOk;
  return session.poisoned() ? static_cast<int>(kViolation) : failed;
}

}  // namespace

void AddStep(CLI::App& app, Command& selected) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("step", "Decode one token at a time, by hand");
  command->footer(std::string("At its prompt:\n") + kStepHelp +
                  "Examples:\n"
                  "  latchctl step --prompt 'The cat'\n"
                  "  printf '\\n2\\n= sat\\nrun 8\\ntext\\n' | latchctl step --prompt 'The cat'");
  auto* prompt = command->add_option("-p,--prompt", options->prompt, "Text to begin with");
  command->add_option("--prompt-ids", options->prompt_ids, "Token ids instead of text: 1,2,3")
      ->delimiter(',')
      ->excludes(prompt);
  command->add_option("--session", options->session, "Go on in this session, which stays open")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--capacity", options->capacity,
                      "Tokens of a new session; 0: the longest the daemon allows");
  command->add_option("--top", options->top_logprobs, "Alternatives to show")
      ->capture_default_str()
      ->check(CLI::Range(0, 20));
  options->sampling.AddTo(*command);
  command->callback([options, &selected] {
    if (!options->prompt && options->prompt_ids.empty() && options->session == 0) {
      throw CLI::ValidationError("step", "give --prompt TEXT, --prompt-ids IDS or --session ID");
    }
    selected = [options](Context& context) { return Run(*options, context); };
  });
}

}  // namespace latchd::cli
