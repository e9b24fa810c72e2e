#include "client/retry.h"

#include <algorithm>
#include <cmath>

#include "client/errors.h"

namespace latchd::client {

bool IsRetryable(const absl::Status& status) {
  if (status.ok()) return false;
  return absl::IsUnavailable(status) || GetRetryDelay(status).has_value();
}

absl::Duration RetryDelay(const RetryPolicy& policy, int retry, double uniform,
                          const absl::Status& status) {
  const absl::Duration grown = policy.initial_backoff * std::pow(policy.multiplier, retry);
  const absl::Duration backoff = std::min(grown, policy.max_backoff) * (1.0 - 0.5 * uniform);
  return std::max(backoff, GetRetryDelay(status).value_or(absl::ZeroDuration()));
}

}  // namespace latchd::client
