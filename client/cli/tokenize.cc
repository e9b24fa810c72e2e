#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "client/cli/command.h"
#include "client/cli/format.h"
#include "client/cli/json.h"
#include "client/cli/line_reader.h"

namespace latchd::cli {
namespace {

struct Options {
  std::string text;
  bool no_special = false;
  std::vector<int32_t> ids;
  bool skip_special = false;
};

int Tokenize(const Options& options, Context& context) {
  v1::TokenizeRequest request;
  absl::StatusOr<std::string> text = options.text;
  if (*text == "-") text = ReadAllOfStdin();
  if (!text.ok()) return ReportError(text.status());
  request.set_text(*text);
  request.set_add_special_tokens(!options.no_special);
  request.set_with_pieces(true);
  const auto response = context.client.Tokenize(request);
  if (!response.ok()) return ReportError(response.status());
  if (context.json) {
    // A piece may be part of a character, which JSON text cannot hold: the hex form is the exact
    // one.
    Json pieces = Json::array(), hex = Json::array();
    for (const std::string& piece : response->pieces()) {
      pieces.push_back(piece);
      hex.push_back(absl::BytesToHexString(piece));
    }
    PrintJson({{"token_ids", response->token_ids()}, {"pieces", pieces}, {"pieces_hex", hex}});
    return kOk;
  }
  Table table({"index", "id", "piece"});
  for (int i = 0; i < response->token_ids_size(); ++i) {
    table.AddRow({std::to_string(i), std::to_string(response->token_ids(i)),
                  i < response->pieces_size() ? Quote(response->pieces(i)) : ""});
  }
  std::fputs(table.ToString().c_str(), stdout);
  return kOk;
}

int Detokenize(const Options& options, Context& context) {
  const auto text = context.client.Detokenize(options.ids, options.skip_special);
  if (!text.ok()) return ReportError(text.status());
  if (context.json) {
    PrintJson({{"text", *text}});
  } else {
    std::printf("%s\n", (StdoutIsTerminal() ? TerminalText(*text) : *text).c_str());
  }
  return kOk;
}

}  // namespace

void AddTokenize(CLI::App& app, Command& selected) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("tokenize", "Show the tokens of a text");
  command->footer("Examples:\n  latchctl tokenize 'Hello world'\n  latchctl tokenize - < file.txt");
  command->add_option("text", options->text, "Text; - reads stdin")->required();
  command->add_flag("--no-special", options->no_special, "Do not add BOS");
  command->callback([options, &selected] {
    selected = [options](Context& context) { return Tokenize(*options, context); };
  });
}

void AddDetokenize(CLI::App& app, Command& selected) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("detokenize", "Turn token ids into text");
  command->footer("Example:\n  latchctl detokenize 15496 995");
  command->add_option("ids", options->ids, "Token ids")->required()->delimiter(',');
  command->add_flag("--skip-special", options->skip_special, "Leave special tokens out");
  command->callback([options, &selected] {
    selected = [options](Context& context) { return Detokenize(*options, context); };
  });
}

}  // namespace latchd::cli
