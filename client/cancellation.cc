#include "client/cancellation.h"

#include <grpcpp/client_context.h>

namespace latchd::client {

void Cancellation::Cancel() {
  absl::MutexLock lock(&mutex_);
  cancelled_ = true;
  for (grpc::ClientContext* context : running_) context->TryCancel();
}

void Cancellation::Clear() {
  absl::MutexLock lock(&mutex_);
  cancelled_ = false;
}

bool Cancellation::cancelled() const {
  absl::MutexLock lock(&mutex_);
  return cancelled_;
}

CancellableScope::CancellableScope(Cancellation* cancellation, grpc::ClientContext* context)
    : cancellation_(cancellation), context_(context) {
  if (cancellation_ == nullptr) return;
  absl::MutexLock lock(&cancellation_->mutex_);
  cancellation_->running_.insert(context_);
  // gRPC remembers a cancel that comes before the call starts, so no window is left open here.
  if (cancellation_->cancelled_) context_->TryCancel();
}

CancellableScope::~CancellableScope() {
  if (cancellation_ == nullptr) return;
  absl::MutexLock lock(&cancellation_->mutex_);
  cancellation_->running_.erase(context_);
}

}  // namespace latchd::client
