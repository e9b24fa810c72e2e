#pragma once

#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace grpc {
class ClientContext;
}

namespace latchd::client {

// Cancels calls from another thread: give it to calls through CallOptions, then Cancel() ends those
// that run and each later one with CANCELLED, until Clear(). It must outlive the calls.
// Thread-safe; not async-signal-safe.
class Cancellation {
 public:
  Cancellation() = default;
  Cancellation(const Cancellation&) = delete;
  Cancellation& operator=(const Cancellation&) = delete;

  void Cancel();
  void Clear();
  bool cancelled() const;

 private:
  friend class CancellableScope;
  mutable absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<grpc::ClientContext*> running_ ABSL_GUARDED_BY(mutex_);
};

// Ties one call's context to a Cancellation (which may be null) while it runs. Internal.
class CancellableScope {
 public:
  CancellableScope(Cancellation* cancellation, grpc::ClientContext* context);
  ~CancellableScope();
  CancellableScope(const CancellableScope&) = delete;
  CancellableScope& operator=(const CancellableScope&) = delete;

 private:
  Cancellation* const cancellation_;
  grpc::ClientContext* const context_;
};

}  // namespace latchd::client
