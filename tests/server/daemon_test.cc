// The daemon as a process over the puppet engine: signals, exit codes and what is printed.

#include "server/daemon.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/logging.h"
#include "tests/server/server_fixture.h"

namespace latchd {
namespace {

using ::testing::HasSubstr;

class Daemon {
 public:
  explicit Daemon(std::vector<std::string> arguments) {
    static int count = 0;
    path_ = absl::StrCat(::testing::TempDir(), "/latchd_daemon_", getpid(), "_", ++count);
    std::vector<char*> argv;
    arguments.insert(arguments.begin(), LATCHD_PUPPET);
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ != 0) return;
    const int out = open(path_.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_APPEND, 0600);
    dup2(out, 1);
    dup2(out, 2);
    execv(argv[0], argv.data());
    _exit(127);
  }
  ~Daemon() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    std::remove(path_.c_str());
  }

  std::string output() const {
    std::ifstream file(path_);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  bool WaitFor(const std::string& text) const {
    for (int i = 0; i < 2000; ++i) {
      if (output().find(text) != std::string::npos) return true;
      absl::SleepFor(absl::Milliseconds(10));
    }
    return false;
  }
  void Signal(int signal) const { kill(pid_, signal); }
  // The exit code; -1 when it did not end in time, -signal when one killed it.
  int Wait() {
    for (int i = 0; i < 2000; ++i) {
      int status = 0;
      if (waitpid(pid_, &status, WNOHANG) == pid_) {
        pid_ = -1;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
      }
      absl::SleepFor(absl::Milliseconds(10));
    }
    return -1;
  }

 private:
  pid_t pid_ = -1;
  std::string path_;
};

std::vector<std::string> Serve(const std::string& model) {
  return {"--model", model, "--listen=127.0.0.1:0", "--http=127.0.0.1:0"};
}

TEST(DaemonTest, ASignalDrainsAndExitsWithZero) {
  for (const int signal : {SIGTERM, SIGINT}) {
    Daemon daemon(Serve("good"));
    ASSERT_TRUE(daemon.WaitFor("serving")) << daemon.output();
    EXPECT_THAT(daemon.output(), HasSubstr("puppet (cpu)")) << "the report of the start";
    daemon.Signal(signal);
    EXPECT_EQ(daemon.Wait(), kExitOk);
    EXPECT_THAT(daemon.output(), HasSubstr("draining"));
    EXPECT_THAT(daemon.output(), HasSubstr("stopped"));
  }
}

TEST(DaemonTest, ASecondSignalEndsADrainThatWaits) {
  auto arguments = Serve("held");
  arguments.push_back("--drain-timeout=10m");
  Daemon daemon(arguments);
  ASSERT_TRUE(daemon.WaitFor("serving"));
  const std::string output = daemon.output();
  const size_t at = output.find("grpc=") + 5;
  auto stub = v1::DecodeService::NewStub(grpc::CreateChannel(
      output.substr(at, output.find(' ', at) - at), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(30)));
  v1::GenerateRequest request;
  request.set_text("hi");
  auto stream = stub->Generate(&context, request);
  absl::SleepFor(absl::Milliseconds(300));  // the generation has begun
  daemon.Signal(SIGTERM);
  ASSERT_TRUE(daemon.WaitFor("draining"));
  daemon.Signal(SIGTERM);
  EXPECT_EQ(daemon.Wait(), 128 + SIGTERM);
  EXPECT_FALSE(stream->Finish().ok());
}

TEST(DaemonTest, ASignalDuringTheLoadEndsAtOnce) {
  Daemon daemon(Serve("slow"));
  absl::SleepFor(absl::Milliseconds(500));
  const absl::Time start = absl::Now();
  daemon.Signal(SIGTERM);
  EXPECT_EQ(daemon.Wait(), 128 + SIGTERM);
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
}

TEST(DaemonTest, ABadStartIsOneLineAndExitCodeTwo) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {Serve("missing"), "latchd: missing: no such\\nmodel\n"},
      {{"--model=m", "--max-rows=0"},
       "latchd: --max-rows: expected an integer from 1 to 128, got '0'\n"},
      {{"--nonsense"}, "latchd: --nonsense: no such flag; latchd --help lists them\n"},
      // As it was given: neither quotes nor backslashes are escaped.
      {{"--no\"n\\sense\x1b"},
       "latchd: --no\"n\\sense\\x1b: no such flag; latchd --help lists them\n"},
      {{}, "latchd: --model: expected the path of a model folder or .gguf file, got nothing\n"},
      {{"--model=good", "--listen=192.0.2.1:7878", "--http="},
       "latchd: --listen: cannot listen on 192.0.2.1:7878: Cannot assign requested address\n"},
  };
  for (const auto& [arguments, message] : cases) {
    Daemon daemon(arguments);
    EXPECT_EQ(daemon.Wait(), kExitBadStart);
    EXPECT_EQ(daemon.output(), message);
  }
}

TEST(DaemonTest, ADeviceFaultExitsWithThree) {
  Daemon daemon(Serve("fault"));
  EXPECT_EQ(daemon.Wait(), kExitDeviceFault);
  EXPECT_THAT(daemon.output(), HasSubstr("device is gone"));
}

TEST(DaemonTest, JsonLogIsJsonOnEveryLine) {
  auto arguments = Serve("good");
  arguments.push_back("--log-format=json");
  arguments.push_back("--log-level=debug");
  Daemon daemon(arguments);
  ASSERT_TRUE(daemon.WaitFor("\"serving\""));
  daemon.Signal(SIGTERM);
  EXPECT_EQ(daemon.Wait(), kExitOk);
  std::istringstream lines(daemon.output());
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_TRUE(nlohmann::json::accept(line)) << line;
  }
  EXPECT_GE(count, 3);
}

TEST(DaemonTest, PrintsItsTexts) {
  for (const auto& [flag, part] : {std::pair<std::string, std::string>{"--help", "--model PATH"},
                                   {"--version", "latchd " LATCHD_VERSION},
                                   {"--print-config", "model = "},
                                   {"--print-flags-markdown", "| `--model PATH` |"},
                                   {"--print-metrics", "latchd_step_seconds histogram"}}) {
    Daemon daemon({flag});
    EXPECT_EQ(daemon.Wait(), 0);
    EXPECT_THAT(daemon.output(), HasSubstr(part));
  }
}

}  // namespace
}  // namespace latchd
