#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "server/options.h"

namespace latchd {
namespace {

constexpr size_t kColumns = 80;

// `text` broken at spaces so that no line is longer than kColumns; every line starts with `indent`.
std::string Wrap(const std::string& text, const std::string& indent) {
  std::string out, line = indent;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (line.size() > indent.size() && line.size() + 1 + word.size() > kColumns) {
      absl::StrAppend(&out, line, "\n");
      line = indent;
    }
    absl::StrAppend(&line, line.size() > indent.size() ? " " : "", word);
  }
  return absl::StrCat(out, line, "\n");
}

// A value as the config file spells it: numbers and booleans bare, all else quoted.
std::string TomlValue(const Flag& flag, const std::string& value) {
  const bool bare = std::visit(
      [](auto field) {
        using T = std::decay_t<decltype(field(std::declval<Options&>()))>;
        return !std::is_same_v<T, std::string> && !std::is_same_v<T, absl::Duration>;
      },
      flag.field);
  return bare ? value : absl::StrCat("\"", value, "\"");
}

std::string Accepts(const Flag& flag) {
  if (flag.expected) return absl::StrCat(" One of: ", flag.expected, ".");
  return "";
}

}  // namespace

std::string HelpText() {
  std::string out =
      "latchd serves LLM decode over gRPC: explicit sessions, captured steps, and a device error\n"
      "latch that names the invariant a step violated.\n\n"
      "  latchd --model ~/models/smollm2.gguf\n"
      "  latchd --model /models/llama --device cuda:0 --dtype bf16 --max-rows 32\n"
      "  LATCHD_MODEL=/models/m.gguf latchd --listen unix:/run/latchd/latchd.sock --http ''\n"
      "  latchd --print-config > latchd.toml && latchd --config latchd.toml\n\n"
      "Each flag can also be given as a variable (--max-rows: LATCHD_MAX_ROWS) or as a key of the\n"
      "config file (max-rows = 8). A flag wins over a variable, a variable over the file.\n"
      "Durations are written 500ms, 30s, 10m or 1h30m.\n";
  std::string group;
  for (const Flag& flag : FlagTable()) {
    if (group != flag.group) {
      group = flag.group;
      absl::StrAppend(&out, "\n", group, "\n");
    }
    const std::string standard = DefaultText(flag);
    absl::StrAppend(&out, "  --", flag.name, " ", flag.value,
                    standard.empty() ? "" : absl::StrCat("  [", standard, "]"), "\n",
                    Wrap(absl::StrCat(flag.help, Accepts(flag)), "      "));
  }
  absl::StrAppend(
      &out,
      "\nOther\n"
      "  --config PATH            read a config file (TOML); also LATCHD_CONFIG\n"
      "  --print-config           print an example config file with every key\n"
      "  --print-flags-markdown   print the flags as a Markdown table\n"
      "  --print-metrics          print every metric of /metrics with its meaning\n"
      "  --version                print version and backends\n"
      "  -h, --help               print this text\n\n"
      "Exit codes: 0 drained, 2 wrong options, model, device or address, 3 device fault.\n"
      "SIGTERM or SIGINT drains; a second one ends the process at once.\n");
  return out;
}

std::string ExampleConfig() {
  std::string out =
      "# Config file of latchd, made by `latchd --print-config`. Every key is optional but model;\n"
      "# the values that are commented out are the defaults. A flag (--max-rows 16) or a variable\n"
      "# (LATCHD_MAX_ROWS=16) wins over this file.\n";
  std::string group;
  for (const Flag& flag : FlagTable()) {
    if (group != flag.group) {
      group = flag.group;
      absl::StrAppend(&out, "\n# ---- ", group, " ----\n");
    }
    const std::string standard = DefaultText(flag);
    absl::StrAppend(&out, "\n", Wrap(absl::StrCat(flag.help, Accepts(flag)), "# "));
    if (std::string(flag.name) == "model") {
      absl::StrAppend(&out, flag.name, " = ", TomlValue(flag, flag.example), "\n");
      continue;
    }
    if (standard != flag.example) {
      absl::StrAppend(&out, "# For example: ", flag.name, " = ", TomlValue(flag, flag.example),
                      "\n");
    }
    absl::StrAppend(&out, "#", flag.name, " = ", TomlValue(flag, standard), "\n");
  }
  return out;
}

std::string FlagsMarkdown() {
  std::string out = "| flag | variable | default | meaning |\n|---|---|---|---|\n";
  for (const Flag& flag : FlagTable()) {
    const std::string standard = DefaultText(flag);
    absl::StrAppend(&out, "| `--", flag.name, " ", flag.value, "` | `", EnvironmentName(flag),
                    "` | ", standard.empty() ? "" : absl::StrCat("`", standard, "`"), " | ",
                    flag.help, Accepts(flag), " |\n");
  }
  return out;
}

}  // namespace latchd
