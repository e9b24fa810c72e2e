#pragma once

#include <thread>

#include "client/cancellation.h"

namespace latchd::cli {

// Turns Ctrl-C (SIGINT) and SIGTERM into a cancelled call instead of a killed process, so that the
// server stops at a whole step and sessions are closed. A second signal before Rearm ends the
// process at once. Create it before any other thread: the signals stay blocked in those that come
// later. Thread-safe.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  client::Cancellation& cancellation() { return cancellation_; }
  bool requested() const { return cancellation_.cancelled(); }
  // Readable from the signal until Rearm: for poll beside standard input.
  int fd() const { return interrupted_fd_; }
  // Forgets the signal; a REPL goes on after it has cancelled one answer.
  void Rearm();

 private:
  void Watch();

  client::Cancellation cancellation_;
  int signal_fd_ = -1;
  int stop_fd_ = -1;
  int interrupted_fd_ = -1;
  std::thread watcher_;
};

}  // namespace latchd::cli
