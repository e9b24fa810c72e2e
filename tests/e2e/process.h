#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace latchd::e2e {

// One child process. Its output goes to files, so that a full pipe never blocks it. Killed on
// destruction.
class Process {
 public:
  // `log_prefix`: output goes to PREFIX.out and PREFIX.err. `input`: all of its standard input.
  Process(const std::vector<std::string>& arguments, const std::string& log_prefix,
          const std::string& input = "");
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void Signal(int signal) const;
  // The exit code (128 + signal for a signal), or nothing when it still runs after `timeout`.
  std::optional<int> Wait(absl::Duration timeout);
  std::string out() const;
  std::string err() const;

 private:
  const std::string log_prefix_;
  pid_t pid_ = -1;
  std::optional<int> code_;
};

}  // namespace latchd::e2e
