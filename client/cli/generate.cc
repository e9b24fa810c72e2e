#include <cstdio>
#include <string>
#include <vector>

#include "client/cli/command.h"
#include "client/cli/format.h"
#include "client/cli/generation.h"
#include "client/cli/line_reader.h"
#include "client/cli/sampling_flags.h"

namespace latchd::cli {
namespace {

struct Options {
  std::optional<std::string> prompt;
  std::vector<int32_t> prompt_ids;
  int32_t max_tokens = 128;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_ids;
  uint64_t session = 0;
  bool append_next = false;
  bool no_special = false;
  bool ignore_eos = false;
  bool raw_ids = false;
  int32_t top_logprobs = 0;
  SamplingFlags sampling;
};

absl::StatusOr<v1::GenerateRequest> ToRequest(const Options& options) {
  v1::GenerateRequest request;
  request.set_session_id(options.session);
  if (options.prompt.has_value()) {
    absl::StatusOr<std::string> text = *options.prompt;
    if (*text == "-") text = ReadAllOfStdin();
    if (!text.ok()) return text.status();
    request.set_text(*text);
  } else if (!options.prompt_ids.empty()) {
    request.mutable_tokens()->mutable_ids()->Add(options.prompt_ids.begin(),
                                                 options.prompt_ids.end());
  }
  request.set_append_next_token(options.append_next);
  if (options.no_special) request.set_add_special_tokens(false);
  request.set_max_tokens(options.max_tokens);
  *request.mutable_sampling() = options.sampling.ToProto();
  request.mutable_stop()->Add(options.stop.begin(), options.stop.end());
  request.mutable_stop_token_ids()->Add(options.stop_ids.begin(), options.stop_ids.end());
  request.set_ignore_eos(options.ignore_eos);
  request.set_top_logprobs(options.top_logprobs);
  return request;
}

int Run(const Options& options, Context& context) {
  const Echo echo = context.json ? Echo::kNone : options.raw_ids ? Echo::kIds : Echo::kText;
  const auto request = ToRequest(options);
  if (!request.ok()) return ReportError(request.status());
  Generation partial;
  const auto generation = RunGeneration(context, *request, echo, &partial);
  // The shell's next prompt, or the error line, starts on a line of its own.
  if (echo == Echo::kText && !partial.text.empty()) std::fputs("\n", stdout);
  std::fflush(stdout);
  if (!generation.ok()) return ReportError(generation.status(), options.session);
  if (context.json) {
    PrintJson(ToJson(*generation));
  } else {
    std::fprintf(stderr, "%s\n", Dim(SummaryLine(*generation)).c_str());
  }
  if (!generation->violated()) return kOk;
  return ReportError(client::ViolationError(generation->finish.violation()), options.session);
}

}  // namespace

void AddGenerate(CLI::App& app, Command& selected) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("generate", "Continue a prompt");
  command->footer(
      "Examples:\n"
      "  latchctl generate --prompt 'Once upon a time' --max-tokens 64\n"
      "  echo 'A long prompt' | latchctl generate --prompt - --temperature 0.8 --seed 7\n"
      "  latchctl generate --prompt Hello --json | jq -r .text\n"
      "  latchctl generate --session 12 --append-next --prompt ' and then'   (go on in a session)");
  auto* prompt = command->add_option("-p,--prompt", options->prompt, "Text; - reads stdin");
  command->add_option("--prompt-ids", options->prompt_ids, "Token ids instead of text: 1,2,3")
      ->delimiter(',')
      ->excludes(prompt);
  command->add_option("-n,--max-tokens", options->max_tokens, "Tokens to generate at most")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 30));
  command->add_option("--stop", options->stop, "End before this text; may be repeated")
      ->allow_extra_args(false);
  command->add_option("--stop-ids", options->stop_ids, "Token ids that end it, besides EOS: 1,2")
      ->delimiter(',');
  command->add_option("--session", options->session, "Go on in this session, which stays open")
      ->check(CLI::NonNegativeNumber);
  command->add_flag("--append-next", options->append_next,
                    "With --session: its next token comes before the prompt");
  command->add_flag("--no-special", options->no_special, "Do not add BOS to the prompt");
  command->add_flag("--ignore-eos", options->ignore_eos, "Do not stop at EOS");
  command->add_flag("--raw-ids", options->raw_ids, "Print token ids, one a line, not text");
  command->add_option("--top-logprobs", options->top_logprobs, "With --json: 0..20 alternatives")
      ->check(CLI::Range(0, 20));
  options->sampling.AddTo(*command);
  command->callback([options, &selected] {
    if (!options->prompt && options->prompt_ids.empty() && options->session == 0) {
      throw CLI::ValidationError("generate",
                                 "give --prompt TEXT, --prompt-ids IDS, or --session ID to go on");
    }
    selected = [options](Context& context) { return Run(*options, context); };
  });
}

}  // namespace latchd::cli
