#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"

namespace latchd::client {

// PEM texts, not paths. An empty root_certs takes the system's certificate store.
struct TlsOptions {
  std::string root_certs;
  std::string client_cert;  // with client_key: mutual TLS
  std::string client_key;
  std::string server_name_override;  // name to check the certificate against; tests only
};

// Retries happen only for the calls that proto/latchd/v1/decode.proto calls idempotent. A call is
// tried again after UNAVAILABLE, and after any error in which the server sent a RetryInfo, whose
// delay is waited for at least.
struct RetryPolicy {
  int max_retries = 3;  // besides the first attempt; 0 turns retries off
  absl::Duration initial_backoff = absl::Milliseconds(50);
  absl::Duration max_backoff = absl::Seconds(2);
  double multiplier = 2.0;  // of the backoff from one retry to the next
};

// The defaults suit an interactive client on the same host or network.
struct ClientOptions {
  absl::Duration connect_timeout = absl::Seconds(5);
  // true: go on trying until connect_timeout, for a daemon that is still starting. false: fail at
  // the first refusal.
  bool wait_for_server = false;
  absl::Duration call_timeout = absl::Seconds(10);         // one short unary call with its retries
  absl::Duration work_timeout = absl::InfiniteDuration();  // one Prefill, Generate or step stream
  std::optional<TlsOptions> tls;                           // unset: plain text
  RetryPolicy retry;
  // Of one response. Full logits are 4 bytes a vocabulary entry, so a step stays far below this.
  int64_t max_message_bytes = 64 << 20;
};

}  // namespace latchd::client
