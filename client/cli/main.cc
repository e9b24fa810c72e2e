#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "client/cli/command.h"
#include "client/cli/interrupt.h"

int main(int argc, char** argv) {
  using namespace latchd;
  // First of all, so that gRPC's threads inherit the blocked signals.
  cli::Interrupt interrupt;

  CLI::App app("Talk to a running latchd.", "latchctl");
  std::string server = "127.0.0.1:7878";
  bool json = false;
  cli::Command selected;
  // Inherited by the commands: --server and --json may stand before or after them.
  app.fallthrough();
  app.add_option("--server", server, "HOST:PORT of the daemon's gRPC service")
      ->envname("LATCHD_SERVER")
      ->take_last()
      ->capture_default_str();
  app.add_flag("--json", json,
               "One JSON object on stdout instead of text (chat, step: one a line)");
  app.set_version_flag("--version", LATCHD_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Examples:\n"
      "  latchctl status\n"
      "  latchctl generate --prompt 'Once upon a time' --max-tokens 64\n"
      "  latchctl chat\n"
      "  latchctl COMMAND --help\n"
      "Exit codes: 0 ok, 1 the server said an error, 2 usage, 3 cannot connect, 4 a device\n"
      "invariant was violated, 130 interrupted.");
  cli::AddGenerate(app, selected);
  cli::AddChat(app, selected);
  cli::AddStep(app, selected);
  cli::AddSessions(app, selected);
  cli::AddStatus(app, selected);
  cli::AddTokenize(app, selected);
  cli::AddDetokenize(app, selected);
  cli::AddBench(app, selected);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? cli::kOk : cli::kUsage;
  }

  auto client = client::Client::Connect(server);
  if (!client.ok()) {
    const int code = cli::ReportError(client.status());
    return absl::IsUnavailable(client.status()) ? cli::kCannotConnect : code;
  }
  cli::Context context{**client, interrupt, json};
  return selected(context);
}
