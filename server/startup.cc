#include "server/startup.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

namespace latchd {
namespace {

constexpr int kBarWidth = 30;

absl::Status Refuse(const std::string& flag, const std::string& address, const std::string& why) {
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, ": cannot listen on ", address, ": ", why));
}

absl::Status CheckUnix(const std::string& path, const std::string& flag) {
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  if (fd < 0) return Refuse(flag, path, std::strerror(errno));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), std::min(path.size(), sizeof(address.sun_path) - 1));
  // A socket file that nobody answers is left from a crash; gRPC replaces it.
  const bool answered =
      connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  close(fd);
  if (answered) return Refuse(flag, absl::StrCat("unix:", path), "Address already in use");
  const std::string folder = std::filesystem::path(path).parent_path().string();
  if (access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) != 0) {
    return Refuse(flag, absl::StrCat("unix:", path),
                  absl::StrCat("its folder: ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace

std::string HumanBytes(size_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return unit == 0 ? absl::StrCat(bytes, " B") : absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::string ProgressBar(const std::string& stage, int64_t done, int64_t total) {
  const double part =
      total > 0 ? std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0) : 0;
  const int filled = static_cast<int>(part * kBarWidth);
  // Counts of graphs or tensors are small; weights are counted in bytes.
  const std::string amount =
      total >= (1 << 20) ? absl::StrCat(HumanBytes(static_cast<size_t>(std::max<int64_t>(done, 0))),
                                        " of ", HumanBytes(static_cast<size_t>(total)))
                         : absl::StrCat(done, " of ", total);
  return absl::StrFormat("%-16s [%s%s] %3d%% (%s)", stage, std::string(filled, '='),
                         std::string(kBarWidth - filled, ' '), static_cast<int>(part * 100),
                         amount);
}

Progress StartupProgress(bool is_terminal) {
  struct State {
    std::string stage;
    absl::Time drawn = absl::InfinitePast();
  };
  auto state = std::make_shared<State>();
  return [state, is_terminal](const std::string& stage, int64_t done, int64_t total) {
    const absl::Time now = absl::Now();
    const bool is_new = stage != state->stage;
    if (!is_terminal) {
      if (is_new) std::fprintf(stderr, "%s ...\n", stage.c_str());
      state->stage = stage;
      return;
    }
    // Ten redraws a second are smooth; a redraw for each tensor would slow the load.
    if (!is_new && done < total && now - state->drawn < absl::Milliseconds(100)) return;
    if (is_new && !state->stage.empty()) std::fputc('\n', stderr);
    state->stage = stage;
    state->drawn = now;
    std::fprintf(stderr, "\r\033[K%s", ProgressBar(stage, done, total).c_str());
    if (done >= total) {
      std::fputc('\n', stderr);
      state->stage.clear();
    }
    std::fflush(stderr);
  };
}

std::string StartupReport(const EngineStatus& status, const std::string& grpc_address,
                          const std::string& http_address) {
  std::string out = absl::StrCat("latchd ", LATCHD_VERSION, "\n");
  const auto line = [&out](const char* label, const std::string& value) {
    absl::StrAppend(&out, absl::StrFormat("  %-9s %s\n", label, value));
  };
  line("device", absl::StrCat(status.device_name, " (", status.backend, ")"));
  if (!status.device_note.empty()) line("", status.device_note);
  line("model", absl::StrCat(status.model_name, " from ", status.model_path));
  line("dtype", status.dtype);
  const double load_s = absl::ToDoubleSeconds(status.load_time);
  line("weights",
       absl::StrFormat(
           "%s, read from %s of files in %.3f s (%.2f GB/s)", HumanBytes(status.weight_bytes),
           HumanBytes(status.model_file_bytes), load_s,
           load_s > 0 ? 1e-9 * static_cast<double>(status.model_file_bytes) / load_s : 0));
  line("kv", absl::StrCat(HumanBytes(status.kv_bytes), " for ", status.kv_tokens_total,
                          " tokens, at most ", status.max_capacity, " in one of ",
                          status.max_sessions, " sessions"));
  line("graphs", absl::StrCat(status.graphs.size(), " captured, ", HumanBytes(status.graph_bytes)));
  line("other", HumanBytes(status.other_bytes));
  line("total",
       HumanBytes(status.weight_bytes + status.kv_bytes + status.graph_bytes + status.other_bytes));
  line("gRPC", grpc_address);
  if (!http_address.empty()) {
    line("HTTP", absl::StrCat("http://", http_address, "/healthz /readyz /metrics"));
  }
  return out;
}

absl::Status CheckAddressFree(const Address& address, const std::string& flag) {
  if (!address.unix_path.empty()) return CheckUnix(address.unix_path, flag);
  if (address.port == 0) return absl::OkStatus();
  const std::string text = absl::StrCat(address.host, ":", address.port);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int resolved =
      getaddrinfo(address.host.c_str(), absl::StrCat(address.port).c_str(), &hints, &found);
  if (resolved != 0) return Refuse(flag, text, gai_strerror(resolved));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  int error = 0;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    const int fd = socket(entry->ai_family, SOCK_STREAM, 0);
    if (fd < 0) {
      error = errno;  // for example no IPv6 here; another address may do
      continue;
    }
    const int yes = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    const bool bound = bind(fd, entry->ai_addr, entry->ai_addrlen) == 0 && listen(fd, 1) == 0;
    error = bound ? 0 : errno;
    close(fd);
    if (!bound) break;
  }
  if (error != 0) return Refuse(flag, text, std::strerror(error));
  return absl::OkStatus();
}

}  // namespace latchd
