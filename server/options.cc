#include "server/options.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace latchd {
namespace {

// CLI11 splits the command line and reads the config file; values stay text, so that one function
// converts a value from whatever source and words the error. CLI11's own precedence (config file
// over environment) is not ours.
struct Given {
  std::string value;
  std::string source;  // "--max-rows", "LATCHD_MAX_ROWS" or "latchd.toml: max-rows"
};

absl::Status Bad(const std::string& source, const std::string& expected, const std::string& got) {
  return absl::InvalidArgumentError(
      absl::StrCat(source, ": expected ", expected, ", got '", got, "'"));
}

template <typename Integer>
absl::Status SetInteger(const Flag& flag, const Given& given, Integer& out) {
  int64_t value = 0;
  if (!absl::SimpleAtoi(given.value, &value) || value < flag.minimum || value > flag.maximum) {
    return Bad(given.source, absl::StrCat("an integer from ", flag.minimum, " to ", flag.maximum),
               given.value);
  }
  out = static_cast<Integer>(value);
  return absl::OkStatus();
}

absl::Status Set(const Flag& flag, const Given& given, Options& options) {
  return std::visit(
      [&](auto field) -> absl::Status {
        auto& out = field(options);
        using T = std::decay_t<decltype(out)>;
        if constexpr (std::is_same_v<T, std::string>) {
          if (flag.valid && !flag.valid(given.value)) {
            return Bad(given.source, flag.expected, given.value);
          }
          out = given.value;
          return absl::OkStatus();
        } else if constexpr (std::is_same_v<T, bool>) {
          if (!absl::SimpleAtob(given.value, &out)) {
            return Bad(given.source, "true or false", given.value);
          }
          return absl::OkStatus();
        } else if constexpr (std::is_same_v<T, absl::Duration>) {
          absl::Duration value;
          if (!absl::ParseDuration(given.value, &value) || value < absl::Seconds(flag.minimum) ||
              value > absl::Seconds(flag.maximum)) {
            return Bad(given.source,
                       absl::StrCat("a duration such as 500ms, 30s or 10m, from ",
                                    absl::FormatDuration(absl::Seconds(flag.minimum)), " to ",
                                    absl::FormatDuration(absl::Seconds(flag.maximum))),
                       given.value);
          }
          out = value;
          return absl::OkStatus();
        } else {
          return SetInteger(flag, given, out);
        }
      },
      flag.field);
}

bool IsBool(const Flag& flag) { return std::holds_alternative<bool& (*)(Options&)>(flag.field); }

struct CommandLine {
  Invocation::Action action = Invocation::Action::kServe;
  std::map<std::string, std::string> values;  // by flag name
  std::optional<std::string> config;
};

absl::StatusOr<CommandLine> ReadCommandLine(const std::vector<std::string>& arguments) {
  using Action = Invocation::Action;
  CommandLine line;
  CLI::App app;
  app.set_help_flag();
  app.allow_extras(false);
  std::map<Action, bool> actions;
  app.add_flag("-h,--help", actions[Action::kHelp]);
  app.add_flag("--version", actions[Action::kVersion]);
  app.add_flag("--print-config", actions[Action::kPrintConfig]);
  app.add_flag("--print-flags-markdown", actions[Action::kPrintFlagsMarkdown]);
  app.add_flag("--print-metrics", actions[Action::kPrintMetrics]);
  std::string config;
  CLI::Option* config_option = app.add_option("--config", config);
  std::map<std::string, std::string> raw;
  std::map<std::string, CLI::Option*> options;
  for (const Flag& flag : FlagTable()) {
    const std::string name = absl::StrCat("--", flag.name);
    std::string& value = raw[flag.name];
    // A bool may stand alone or have a value: --enable-fault-injection,
    // --enable-fault-injection=false.
    options[flag.name] = IsBool(flag) ? app.add_flag(name, value) : app.add_option(name, value);
  }
  std::vector<std::string> reversed;  // as CLI11 wants them
  for (auto it = arguments.rbegin(); it != arguments.rend(); ++it) {
    // CLI11 takes "--http=" for a flag whose value is missing; as two arguments it is an empty
    // value.
    if (it->rfind("--", 0) == 0 && it->find('=') == it->size() - 1) {
      reversed.push_back("");
      reversed.push_back(it->substr(0, it->size() - 1));
    } else {
      reversed.push_back(*it);
    }
  }
  try {
    app.parse(reversed);
  } catch (const CLI::ExtrasError&) {
    for (const std::string& extra : app.remaining()) {
      return absl::InvalidArgumentError(
          absl::StrCat(extra, ": no such flag; latchd --help lists them"));
    }
    return absl::InvalidArgumentError("unknown argument; latchd --help lists the flags");
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(std::string(error.what()));
  }
  for (const auto& [action, asked] : actions) {
    if (asked) line.action = action;
  }
  for (const auto& [name, option] : options) {
    if (option->count() > 0) line.values[name] = raw[name];
  }
  if (config_option->count() > 0) line.config = config;
  return line;
}

absl::StatusOr<std::map<std::string, Given>> ReadConfig(const std::string& path) {
  std::ifstream file(path);
  // A folder opens well and fails at the first byte.
  if (file) file.peek();
  if (!file.is_open() || file.bad()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--config: cannot read '", path, "': ", std::strerror(errno)));
  }
  std::map<std::string, Given> values;
  std::vector<CLI::ConfigItem> items;
  try {
    items = CLI::ConfigTOML().from_config(file);
  } catch (const CLI::Error& error) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", error.what()));
  }
  for (const CLI::ConfigItem& item : items) {
    const std::string name = item.fullname();
    if (item.name == "++" || item.name == "--")
      continue;  // CLI11's marks of a section's begin and end
    const std::string source = absl::StrCat(path, ": ", name);
    bool known = false;
    for (const Flag& flag : FlagTable()) known |= name == flag.name;
    if (!known) {
      return absl::InvalidArgumentError(
          absl::StrCat(source, ": no such key; latchd --print-config lists them"));
    }
    if (item.inputs.size() != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(source, ": expected one value, got ", item.inputs.size()));
    }
    if (!values.emplace(name, Given{item.inputs[0], source}).second) {
      return absl::InvalidArgumentError(absl::StrCat(source, ": given twice"));
    }
  }
  return values;
}

absl::Status CheckTogether(const Options& options) {
  if (options.engine.model_path.empty()) {
    return absl::InvalidArgumentError(
        "--model: expected the path of a model folder or .gguf file, got nothing");
  }
  if (options.tls_cert.empty() != options.tls_key.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tls-cert and --tls-key: expected both or neither, got only ",
                     options.tls_cert.empty() ? "--tls-key" : "--tls-cert"));
  }
  return absl::OkStatus();
}

}  // namespace

Environment ProcessEnvironment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) return std::nullopt;
    return value;
  };
}

absl::StatusOr<Invocation> ParseOptions(const std::vector<std::string>& arguments,
                                        const Environment& environment) {
  absl::StatusOr<CommandLine> line = ReadCommandLine(arguments);
  if (!line.ok()) return line.status();
  Invocation invocation;
  invocation.action = line->action;
  if (invocation.action != Invocation::Action::kServe) return invocation;

  std::map<std::string, Given> config;
  if (!line->config) line->config = environment("LATCHD_CONFIG");
  if (line->config && !line->config->empty()) {
    invocation.config_path = *line->config;
    auto read = ReadConfig(*line->config);
    if (!read.ok()) return read.status();
    config = *std::move(read);
  }
  for (const Flag& flag : FlagTable()) {
    std::optional<Given> given;
    if (const auto it = line->values.find(flag.name); it != line->values.end()) {
      given = Given{it->second, absl::StrCat("--", flag.name)};
    } else if (const auto value = environment(EnvironmentName(flag))) {
      given = Given{*value, EnvironmentName(flag)};
    } else if (const auto it = config.find(flag.name); it != config.end()) {
      given = it->second;
    }
    if (!given) continue;
    absl::Status status = Set(flag, *given, invocation.options);
    if (!status.ok()) return status;
  }
  absl::Status status = CheckTogether(invocation.options);
  if (!status.ok()) return status;
  return invocation;
}

}  // namespace latchd
