#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/engine.h"

namespace latchd {

// Everything the daemon can be told. Defaults are the values here; names, help and limits are in
// the one table of options_table.cc, from which come flags, LATCHD_* variables, the config file,
// --help, --print-config and the manual.
struct Options {
  EngineOptions engine;
  std::string listen = "127.0.0.1:7878";  // host:port or unix:path
  std::string http = "127.0.0.1:7879";    // host:port; empty: no HTTP
  std::string tls_cert, tls_key;          // PEM files; both or neither
  int64_t max_message_bytes = 16 << 20;   // of one gRPC message, either way
  absl::Duration drain_timeout = absl::Seconds(30);
  absl::Duration stall_timeout = absl::Seconds(60);
  std::string log_level = "info";
  std::string log_format = "text";
};

// One row of the table. `field` gives the member it sets, whose value in a default Options is the
// default.
struct Flag {
  using Field = std::variant<std::string& (*)(Options&), int64_t& (*)(Options&), int& (*)(Options&),
                             bool& (*)(Options&), absl::Duration& (*)(Options&)>;
  const char* name;   // "max-rows": flag --max-rows, variable LATCHD_MAX_ROWS, config key max-rows
  const char* group;  // heading in --help
  const char* value;  // what a value is: PATH, TOKENS, DURATION, ...
  const char* help;   // one or two sentences; units and what 0 means
  const char* example;  // a value worth showing in the example config
  Field field;
  int64_t minimum = 0;  // bounds of integers; durations are bounded in seconds
  int64_t maximum = INT64_MAX;
  // What a string must look like, in words for the error message ("auto, f32, f16 or bf16"); null:
  // anything.
  const char* expected = nullptr;
  bool (*valid)(std::string_view value) = nullptr;
};

const std::vector<Flag>& FlagTable();

// What the command line asked for.
struct Invocation {
  enum class Action {
    kServe,
    kHelp,
    kVersion,
    kPrintConfig,
    kPrintFlagsMarkdown,
    kPrintMetrics,
  };
  Action action = Action::kServe;
  Options options;
  std::string config_path;  // empty: no config file
};

using Environment = std::function<std::optional<std::string>(const std::string& name)>;
Environment ProcessEnvironment();

// Precedence: flag, then LATCHD_* variable, then config file, then default. INVALID_ARGUMENT with
// one line that names what was wrong, what was expected, what came, and where it came from.
absl::StatusOr<Invocation> ParseOptions(const std::vector<std::string>& arguments,
                                        const Environment& environment);

// Texts generated from the table.
std::string HelpText();
std::string ExampleConfig();                    // deploy/latchd.toml
std::string FlagsMarkdown();                    // the table of deploy/FLAGS.md
std::string EnvironmentName(const Flag& flag);  // LATCHD_MAX_ROWS
std::string DefaultText(const Flag& flag);      // "10m", "8", "127.0.0.1:7878"

// A listen address taken apart; nothing when malformed.
struct Address {
  std::string host;       // without brackets; empty for a unix socket
  int port = 0;           // 0: any free port
  std::string unix_path;  // not empty: a unix socket
};
std::optional<Address> ParseAddress(std::string_view text);

}  // namespace latchd
