#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "absl/status/statusor.h"

// What a line typed at the prompt of `latchctl step` means.

namespace latchd::cli {

struct AcceptCommand {  // "" (Enter): append the token that the model chose
  int64_t steps = 1;    // "run N"
};
struct AlternativeCommand {  // "3": force the third alternative
  int64_t number = 1;        // from 1
};
struct ForceTokenCommand {  // "#198": force a token id
  int32_t token_id = 0;
};
struct ForceTextCommand {  // "=some text": force the tokens of a text
  std::string text;
};
struct TruncateCommand {  // "trunc 12"
  int64_t length_tokens = 0;
};
struct PlainCommand {
  enum class Kind { kShow, kText, kLatch, kClear, kReset, kHelp, kQuit };
  Kind kind = Kind::kHelp;
};
using StepCommand = std::variant<AcceptCommand, AlternativeCommand, ForceTokenCommand,
                                 ForceTextCommand, TruncateCommand, PlainCommand>;

// INVALID_ARGUMENT says what was expected.
absl::StatusOr<StepCommand> ParseStepCommand(const std::string& line);

extern const char kStepHelp[];

}  // namespace latchd::cli
