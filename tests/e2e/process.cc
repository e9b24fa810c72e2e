#include "tests/e2e/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "absl/time/clock.h"

namespace latchd::e2e {
namespace {

std::string Slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

Process::Process(const std::vector<std::string>& arguments, const std::string& log_prefix,
                 const std::string& input)
    : log_prefix_(log_prefix) {
  std::ofstream(log_prefix + ".in", std::ios::binary) << input;
  // Everything that allocates comes before the fork: another thread may hold the allocator's lock.
  const std::string in_path = log_prefix + ".in";
  const std::string out_path = log_prefix + ".out";
  const std::string err_path = log_prefix + ".err";
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_ = fork();
  if (pid_ != 0) return;
  const int in = open(in_path.c_str(), O_RDONLY);
  const int out = open(out_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  const int err = open(err_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (in < 0 || out < 0 || err < 0) _exit(126);
  dup2(in, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  execvp(argv[0], argv.data());
  _exit(127);
}

Process::~Process() {
  if (code_.has_value() || pid_ <= 0) return;
  kill(pid_, SIGKILL);
  Wait(absl::Seconds(5));
}

void Process::Signal(int signal) const {
  if (!code_.has_value() && pid_ > 0) kill(pid_, signal);
}

std::optional<int> Process::Wait(absl::Duration timeout) {
  const absl::Time end = absl::Now() + timeout;
  while (!code_.has_value()) {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    } else if (absl::Now() >= end) {
      break;
    } else {
      absl::SleepFor(absl::Milliseconds(5));
    }
  }
  return code_;
}

std::string Process::out() const { return Slurp(log_prefix_ + ".out"); }
std::string Process::err() const { return Slurp(log_prefix_ + ".err"); }

}  // namespace latchd::e2e
