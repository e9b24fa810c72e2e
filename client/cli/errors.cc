#include <cstdio>

#include "client/cli/command.h"
#include "client/cli/format.h"

namespace latchd::cli {
namespace {

std::string Hint(const absl::Status& status, uint64_t session_id) {
  if (client::GetViolation(status).has_value()) {
    if (session_id == 0) return "its session is closed; other sessions are not affected";
    return "to go on from its last good length: latchctl sessions clear " +
           std::to_string(session_id);
  }
  if (const auto delay = client::GetRetryDelay(status)) {
    return "try again in " + absl::FormatDuration(*delay);
  }
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
      return "start it with `latchd --model PATH`, or name another with --server HOST:PORT "
             "(env LATCHD_SERVER); --tls-ca FILE where it has --tls-cert";
    case absl::StatusCode::kNotFound: return "`latchctl sessions` lists what is open";
    case absl::StatusCode::kAborted: return "wait until the session's other request has ended";
    case absl::StatusCode::kResourceExhausted:
      return "`latchctl sessions` lists what may be closed";
    case absl::StatusCode::kDeadlineExceeded: return "`latchctl status` shows how busy it is";
    default: return "";
  }
}

}  // namespace

int ReportError(const absl::Status& status, uint64_t session_id) {
  if (absl::IsCancelled(status)) {
    std::fputs("latchctl: interrupted\n", stderr);
    return kInterrupted;
  }
  const std::string hint = Hint(status, session_id);
  const std::string line = absl::StatusCodeToString(status.code()) + ": " +
                           EscapeControl(std::string(status.message())) +
                           (hint.empty() ? "" : " (" + hint + ")");
  std::fprintf(stderr, "latchctl: %s\n", line.c_str());
  if (client::GetViolation(status).has_value()) return kViolation;
  // With a RetryInfo it is a daemon that answered, draining; without, nobody did.
  const bool nobody = absl::IsUnavailable(status) && !client::GetRetryDelay(status).has_value();
  return nobody ? kCannotConnect : kServerError;
}

}  // namespace latchd::cli
