#include "client/cli/interrupt.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace latchd::cli {
namespace {

void Raise(int event_fd) {
  const uint64_t one = 1;
  (void)!write(event_fd, &one, sizeof(one));
}

void Lower(int event_fd) {
  uint64_t count = 0;
  (void)!read(event_fd, &count, sizeof(count));
}

}  // namespace

Interrupt::Interrupt() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal_fd_ = signalfd(-1, &signals, SFD_CLOEXEC);
  stop_fd_ = eventfd(0, EFD_CLOEXEC);
  interrupted_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  watcher_ = std::thread([this] { Watch(); });
}

Interrupt::~Interrupt() {
  Raise(stop_fd_);
  watcher_.join();
  close(signal_fd_);
  close(stop_fd_);
  close(interrupted_fd_);
}

void Interrupt::Rearm() {
  cancellation_.Clear();
  Lower(interrupted_fd_);
}

void Interrupt::Watch() {
  pollfd fds[] = {{signal_fd_, POLLIN, 0}, {stop_fd_, POLLIN, 0}};
  while (poll(fds, 2, -1) >= 0 || errno == EINTR) {
    if (fds[1].revents != 0) return;
    if (fds[0].revents == 0) continue;
    signalfd_siginfo info;
    if (read(signal_fd_, &info, sizeof(info)) != sizeof(info)) return;
    if (requested()) _exit(128 + static_cast<int>(info.ssi_signo));
    cancellation_.Cancel();
    Raise(interrupted_fd_);
  }
}

}  // namespace latchd::cli
