#include "client/cli/step_command.h"

#include <charconv>
#include <map>

namespace latchd::cli {
namespace {

using Kind = PlainCommand::Kind;

template <class Integer>
absl::StatusOr<Integer> ParseNumber(const std::string& text, const char* what, Integer least) {
  Integer value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value < least) {
    return absl::InvalidArgumentError(std::string(what) + ": expected a number from " +
                                      std::to_string(least) + ", got \"" + text + "\"");
  }
  return value;
}

}  // namespace

const char kStepHelp[] =
    "Enter       append the token that the model chose    run N      the same N times\n"
    "1, 2, ...   append that alternative instead          #ID        append a token id\n"
    "=TEXT       append the tokens of a text              trunc N    keep the first N tokens\n"
    "show        the current choice again                 text       what was appended so far\n"
    "latch       the session and its latch                clear      clear the latch\n"
    "reset       empty the session                        quit       leave\n";

absl::StatusOr<StepCommand> ParseStepCommand(const std::string& line) {
  static const auto& kPlain = *new std::map<std::string, Kind>{
      {"show", Kind::kShow},   {"text", Kind::kText},   {"latch", Kind::kLatch},
      {"clear", Kind::kClear}, {"reset", Kind::kReset}, {"help", Kind::kHelp},
      {"?", Kind::kHelp},      {"quit", Kind::kQuit},   {"q", Kind::kQuit}};
  if (line.empty()) return AcceptCommand{};
  // Only here may blanks matter, so it comes before any splitting.
  if (line[0] == '=') {
    if (line.size() == 1) return absl::InvalidArgumentError("=TEXT: expected a text after =");
    return ForceTextCommand{line.substr(1)};
  }
  if (const auto plain = kPlain.find(line); plain != kPlain.end()) {
    return PlainCommand{plain->second};
  }
  if (line[0] == '#') {
    // Any int32: whether the vocabulary has it is the daemon's to judge.
    const auto id = ParseNumber<int32_t>(line.substr(1), "token id", INT32_MIN);
    if (!id.ok()) return id.status();
    return ForceTokenCommand{*id};
  }
  const size_t blank = line.find(' ');
  const std::string word = line.substr(0, blank);
  const std::string rest = blank == std::string::npos ? "" : line.substr(blank + 1);
  if (word == "run") {
    const auto steps = ParseNumber<int64_t>(rest, "run", 1);
    if (!steps.ok()) return steps.status();
    return AcceptCommand{*steps};
  }
  if (word == "trunc" || word == "truncate") {
    const auto length = ParseNumber<int64_t>(rest, "trunc", 0);
    if (!length.ok()) return length.status();
    return TruncateCommand{*length};
  }
  const auto number = ParseNumber<int64_t>(line, "alternative", 1);
  if (number.ok()) return AlternativeCommand{*number};
  return absl::InvalidArgumentError("unknown command \"" + line + "\": help lists them");
}

}  // namespace latchd::cli
