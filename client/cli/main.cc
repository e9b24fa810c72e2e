#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

#include "client/cli/command.h"
#include "client/cli/interrupt.h"
#include "client/cli/json.h"

namespace {

// The PEM texts behind --tls and --tls-ca; false when the file cannot be read.
bool ReadTls(bool tls, const std::string& ca_path, latchd::client::ClientOptions& options) {
  if (!tls && ca_path.empty()) return true;
  options.tls.emplace();
  if (ca_path.empty()) return true;
  std::ifstream file(ca_path);
  // By the stream's own operator: an iterator would throw at a folder, which opens like a file.
  std::stringstream text;
  text << file.rdbuf();
  options.tls->root_certs = text.str();
  if (options.tls->root_certs.find("-----BEGIN") != std::string::npos) return true;
  std::fprintf(stderr, "latchctl: --tls-ca: expected a readable PEM file, got %s\n",
               ca_path.c_str());
  return false;
}

// CLI11 says "Could not convert: --seed = x" without what it wanted.
std::string Explain(const CLI::App* app, const CLI::Error& error) {
  const std::string_view message = error.what();
  constexpr std::string_view kPrefix = "Could not convert: ";
  const size_t equals = message.find(" = ");
  const CLI::App* command = app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  if (message.rfind(kPrefix, 0) == 0 && equals != std::string_view::npos) {
    const std::string name(message.substr(kPrefix.size(), equals - kPrefix.size()));
    const CLI::Option* option = command->get_option_no_throw(name);
    if (option != nullptr) {
      return name + ": expected " + option->get_type_name() + ", got " +
             std::string(message.substr(equals + 3)) + "\nRun with --help for more information.\n";
    }
  }
  return CLI::FailureMessage::simple(app, error);
}

// Output is buffered: a full disk may show only now.
int FlushOutput(int code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  std::fprintf(stderr, "latchctl: standard output: cannot write: %s\n", std::strerror(errno));
  return code == latchd::cli::kOk ? latchd::cli::kServerError : code;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace latchd;
  // First of all, so that gRPC's threads inherit the blocked signals.
  cli::Interrupt interrupt;

  CLI::App app("Talk to a running latchd.", "latchctl");
  std::string server = "127.0.0.1:7878";
  bool json = false, tls = false;
  std::string tls_ca;
  cli::Command selected;
  // Inherited by the commands: --server and --json may stand before or after them.
  app.fallthrough();
  app.add_option("--server", server, "HOST:PORT or unix:PATH of the daemon's gRPC service")
      ->envname("LATCHD_SERVER")
      ->take_last()
      ->capture_default_str();
  app.add_flag("--tls", tls, "The daemon has --tls-cert; trust the system's certificates");
  app.add_option("--tls-ca", tls_ca, "As --tls, but trust the certificates of this PEM file")
      ->envname("LATCHD_TLS_CA");
  app.add_flag("--json", json,
               "One JSON object on stdout instead of text (chat, step: one a line)");
  app.set_version_flag("--version", LATCHD_VERSION);
  app.require_subcommand(1);
  app.failure_message(Explain);
  app.footer(
      "Examples:\n"
      "  latchctl status\n"
      "  latchctl generate --prompt 'Once upon a time' --max-tokens 64\n"
      "  latchctl chat\n"
      "  latchctl COMMAND --help\n"
      "Exit codes: 0 ok, 1 an error, 2 usage, 3 cannot connect, 4 a device\n"
      "invariant was violated, 130 interrupted.");
  cli::AddGenerate(app, selected);
  cli::AddChat(app, selected);
  cli::AddStep(app, selected);
  cli::AddSessions(app, selected);
  cli::AddStatus(app, selected);
  cli::AddTokenize(app, selected);
  cli::AddDetokenize(app, selected);
  cli::AddBench(app, selected);
  for (int i = 1; i < argc; ++i) {
    if (cli::IsUtf8(argv[i])) continue;
    std::fprintf(stderr, "latchctl: argument %d: expected UTF-8, got other bytes\n", i);
    return cli::kUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::RequiredError& error) {
    // CLI11 says "A subcommand is required" of a misspelt one too.
    const std::string word = app.remaining().empty() ? "" : app.remaining().front();
    if (word.empty()) return app.exit(error), cli::kUsage;
    std::fprintf(stderr, "latchctl: no %s %s: see latchctl --help\n",
                 word[0] == '-' ? "option" : "command", word.c_str());
    return cli::kUsage;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? cli::kOk : cli::kUsage;
  }

  if (server.find(':') == std::string::npos) {
    std::fprintf(stderr, "latchctl: --server: expected HOST:PORT or unix:PATH, got '%s'\n",
                 server.c_str());
    return cli::kUsage;
  }
  client::ClientOptions options;
  if (!ReadTls(tls, tls_ca, options)) return cli::kUsage;
  auto client = client::Client::Connect(server, options);
  if (!client.ok()) {
    const int code = cli::ReportError(client.status());
    return absl::IsUnavailable(client.status()) ? cli::kCannotConnect : code;
  }
  cli::Context context{**client, interrupt, json};
  return FlushOutput(selected(context));
}
