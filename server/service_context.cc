#include "server/service_context.h"

#include "absl/time/clock.h"
#include "server/grpc_status.h"
#include "server/logging.h"

namespace latchd {

RpcRecord::RpcRecord(ServiceContext& context, const char* method, const std::string& peer)
    : context_(context), method_(method), peer_(peer), start_(absl::Now()) {}

void RpcRecord::Done(const grpc::Status& status) {
  const double seconds = absl::ToDoubleSeconds(absl::Now() - start_);
  const std::string code = CodeName(status.error_code());
  context_.metrics.RpcDone(method_, code, seconds);
  const LogLevel level =
      status.error_code() == grpc::StatusCode::INTERNAL ? LogLevel::kError : LogLevel::kDebug;
  if (!LogEnabled(level)) return;
  nlohmann::json fields = {
      {"method", method_}, {"code", code}, {"seconds", seconds}, {"peer", peer_}};
  if (!status.ok()) fields["error"] = status.error_message();
  Log(level, "rpc done", fields);
}

void CancelLink::Submitted(Engine& engine, RequestId id) {
  {
    MutexLock lock(mutex_);
    id_ = id;
    if (!cancelled_) return;
  }
  engine.Cancel(id);
}

void CancelLink::Cancel(Engine& engine) {
  RequestId id = 0;
  {
    MutexLock lock(mutex_);
    if (cancelled_) return;
    cancelled_ = true;
    id = id_;
  }
  if (id != 0) engine.Cancel(id);
}

bool CancelLink::cancelled() const {
  MutexLock lock(mutex_);
  return cancelled_;
}

absl::Time ToAbslDeadline(std::chrono::system_clock::time_point deadline) {
  // gRPC gives time_point::max() for "none"; anything decades away is the same.
  if (deadline - std::chrono::system_clock::now() > std::chrono::hours(24 * 365 * 20)) {
    return absl::InfiniteFuture();
  }
  return absl::FromChrono(deadline);
}

}  // namespace latchd
