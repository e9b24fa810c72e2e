#include "server/daemon.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "server/logging.h"
#include "server/startup.h"
#include "server/utf8.h"

namespace latchd {
namespace {

// Signals: a handler may only set flags and write to a pipe; the main thread does the rest. The
// first one after the start drains; one before it, or a second one, ends the process.
std::atomic<int> g_signals{0};
std::atomic<bool> g_serving{false};
int g_pipe[2] = {-1, -1};

extern "C" void OnSignal(int signal) {
  if (g_signals.fetch_add(1) > 0 || !g_serving) _exit(128 + signal);
  const char byte = 0;
  (void)!write(g_pipe[1], &byte, 1);
}

bool InstallSignals() {
  g_signals = 0;
  g_serving = false;
  if (pipe(g_pipe) != 0) return false;
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  signal(SIGPIPE, SIG_IGN);  // a client that goes away is an error code, not the end of the daemon
  return sigaction(SIGTERM, &action, nullptr) == 0 && sigaction(SIGINT, &action, nullptr) == 0;
}

int Fail(const std::string& message, int code) {
  // One line, whatever the message holds. Not a log record's escapes: those would double the
  // quotes and backslashes of a message that quotes a file.
  std::string line;
  for (const char c : ToValidUtf8(message)) {
    if (c == '\n') {
      line += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      absl::StrAppendFormat(&line, "\\x%02x", static_cast<unsigned char>(c));
    } else {
      line += c;
    }
  }
  std::fprintf(stderr, "latchd: %s\n", line.c_str());
  return code;
}

int Print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  return std::fflush(stdout) == 0 ? kExitOk : kExitInternal;
}

std::string VersionText() {
#ifdef LATCHD_HAS_CUDA
  return "latchd " LATCHD_VERSION " (cpu, cuda)\n";
#else
  return "latchd " LATCHD_VERSION " (cpu)\n";
#endif
}

void WarnIfOpen(const Options& options) {
  const auto address = ParseAddress(options.listen);
  const bool local = !address || !address->unix_path.empty() || address->host == "localhost" ||
                     address->host == "::1" || address->host.rfind("127.", 0) == 0;
  if (!local) {
    Log(LogLevel::kWarning, "gRPC is reachable from other machines, without authentication",
        {{"listen", options.listen}});
  }
}

// Waits for a signal (0) or a sticky device fault (its exit code).
int WaitForEnd(const Server& server) {
  while (true) {
    pollfd wait = {g_pipe[0], POLLIN, 0};
    if (poll(&wait, 1, 200) > 0) return kExitOk;
    const absl::Status fault = server.fault();
    if (!fault.ok()) {
      Log(LogLevel::kError, "device fault, stopping", {{"fault", fault.ToString()}});
      return kExitDeviceFault;
    }
  }
}

int Serve(const Options& options, const EngineFactory& create) {
  InitLogging(ParseLogLevel(options.log_level), ParseLogFormat(options.log_format));
  if (!InstallSignals()) return Fail("cannot install signal handlers", kExitInternal);
  const bool bar = isatty(STDERR_FILENO) == 1 && options.log_format == "text";
  Progress progress = StartupProgress(bar);
  if (options.log_format == "json") {
    progress = [](const std::string& stage, int64_t done, int64_t total) {
      if (done >= total) Log(LogLevel::kInfo, "load", {{"stage", stage}, {"total", total}});
    };
  }
  auto started = Server::Start(options, create, progress);
  if (!started.ok()) {
    FlushLog();
    const bool internal = absl::IsInternal(started.status());
    return Fail(std::string(started.status().message()), internal ? kExitInternal : kExitBadStart);
  }
  Server& server = **started;
  const EngineStatus status = server.engine().status();
  if (options.log_format == "text" && options.log_level != "off") {
    std::fputs(StartupReport(status, server.grpc_address(), server.http_address()).c_str(), stderr);
  }
  WarnIfOpen(options);
  Log(LogLevel::kInfo, "serving",
      {{"grpc", server.grpc_address()},
       {"http", server.http_address()},
       {"device", status.device_name},
       {"model", status.model_name},
       {"dtype", status.dtype}});
  g_serving = true;

  const int code = WaitForEnd(server);
  if (code == kExitOk) {
    Log(LogLevel::kInfo, "draining", {{"timeout", absl::FormatDuration(options.drain_timeout)}});
    server.Stop(absl::Now() + options.drain_timeout);
  } else {
    // Clients get their errors; then out at once, since destroying objects of a faulted device may
    // hang.
    server.Stop(absl::Now());
    FlushLog();
    std::_Exit(code);
  }
  Log(LogLevel::kInfo, "stopped");
  FlushLog();
  return code;
}

}  // namespace

int RunDaemon(int argc, char** argv, const EngineFactory& create) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  auto invocation = ParseOptions(arguments, ProcessEnvironment());
  if (!invocation.ok()) return Fail(std::string(invocation.status().message()), kExitBadStart);
  switch (invocation->action) {
    case Invocation::Action::kHelp: return Print(HelpText());
    case Invocation::Action::kVersion: return Print(VersionText());
    case Invocation::Action::kPrintConfig: return Print(ExampleConfig());
    case Invocation::Action::kPrintFlagsMarkdown: return Print(FlagsMarkdown());
    case Invocation::Action::kPrintMetrics: return Print(MetricListText());
    case Invocation::Action::kServe: break;
  }
  return Serve(invocation->options, create);
}

}  // namespace latchd
