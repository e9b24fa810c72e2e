#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/cli/interrupt.h"

namespace latchd::cli {

// Lines of standard input, for a person or a pipe. Not thread-safe; one per process, because it
// reads ahead.
class LineReader {
 public:
  explicit LineReader(const Interrupt& interrupt) : interrupt_(interrupt) {}

  // A person is typing: prompts make sense.
  bool interactive() const;
  // The next line without its newline; prints `prompt` first when a person is typing. Nothing at
  // the end of the input and after Ctrl-C.
  std::optional<std::string> Next(const std::string& prompt);

 private:
  const Interrupt& interrupt_;
  std::string buffer_;
  bool end_ = false;
};

// All of standard input. INVALID_ARGUMENT unless it is UTF-8.
absl::StatusOr<std::string> ReadAllOfStdin();

}  // namespace latchd::cli
