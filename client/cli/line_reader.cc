#include "client/cli/line_reader.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "client/cli/json.h"

namespace latchd::cli {
namespace {

// Appends what one read gives; false at the end.
bool ReadSome(std::string& out) {
  char chunk[4096];
  ssize_t n = -1;
  do {
    n = read(STDIN_FILENO, chunk, sizeof(chunk));
  } while (n < 0 && errno == EINTR);
  if (n <= 0) return false;
  out.append(chunk, static_cast<size_t>(n));
  return true;
}

}  // namespace

bool LineReader::interactive() const { return isatty(STDIN_FILENO) != 0; }

std::optional<std::string> LineReader::Next(const std::string& prompt) {
  if (interactive()) {
    std::fputs(prompt.c_str(), stderr);
    std::fflush(stderr);
  }
  for (;;) {
    if (const size_t end = buffer_.find('\n'); end != std::string::npos) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      if (!line.empty() && line.back() == '\r') line.pop_back();
      return line;
    }
    if (end_) {
      if (buffer_.empty()) return std::nullopt;
      std::string line;
      line.swap(buffer_);
      return line;
    }
    pollfd fds[] = {{STDIN_FILENO, POLLIN, 0}, {interrupt_.fd(), POLLIN, 0}};
    if (poll(fds, 2, -1) < 0 && errno != EINTR) return std::nullopt;
    if (fds[1].revents != 0) return std::nullopt;
    if (fds[0].revents != 0) end_ = !ReadSome(buffer_);
  }
}

absl::StatusOr<std::string> ReadAllOfStdin() {
  std::string text;
  while (ReadSome(text)) {
  }
  if (!IsUtf8(text)) {
    return absl::InvalidArgumentError("standard input: expected UTF-8, got other bytes");
  }
  return text;
}

}  // namespace latchd::cli
