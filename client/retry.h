#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/options.h"

namespace latchd::client {

// Whether an idempotent call that ended with `status` may be tried again.
bool IsRetryable(const absl::Status& status);

// How long to wait before retry number `retry` (0 is the first). `uniform` in [0, 1) is the jitter:
// it takes away up to half of the backoff, so that clients that failed together do not come back
// together. The server's own wish, when `status` carries one, is a lower bound.
absl::Duration RetryDelay(const RetryPolicy& policy, int retry, double uniform,
                          const absl::Status& status);

}  // namespace latchd::client
