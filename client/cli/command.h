#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "client/cli/interrupt.h"
#include "client/client.h"

// What all commands of latchctl share. A command is one file with one Add...(), which declares its
// flags on the app and, when the user picked it, stores what is to be run.

namespace latchd::cli {

enum ExitCode : int {
  kOk = 0,
  kServerError = 1,  // the server said an error, or the output could not be written
  kUsage = 2,        // flags or input that latchctl itself refuses
  kCannotConnect = 3,
  kViolation = 4,      // a device invariant was violated
  kInterrupted = 130,  // Ctrl-C, as shells count it
};

struct Context {
  client::Client& client;
  Interrupt& interrupt;
  bool json = false;

  client::CallOptions call_options() const { return {std::nullopt, &interrupt.cancellation()}; }
};

using Command = std::function<int(Context&)>;

void AddGenerate(CLI::App& app, Command& selected);
void AddChat(CLI::App& app, Command& selected);
void AddStep(CLI::App& app, Command& selected);
void AddSessions(CLI::App& app, Command& selected);
void AddStatus(CLI::App& app, Command& selected);
void AddTokenize(CLI::App& app, Command& selected);
void AddDetokenize(CLI::App& app, Command& selected);
void AddBench(CLI::App& app, Command& selected);

// Prints one line on stderr: code, message and, where there is one, what to do next. Returns the
// exit code that fits. `session_id`: of a session that lives on after the command; 0: none.
int ReportError(const absl::Status& status, uint64_t session_id = 0);

}  // namespace latchd::cli
