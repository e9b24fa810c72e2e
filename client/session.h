#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/connection.h"
#include "latchd/v1/decode.pb.h"

namespace latchd::client {

// Owns one open session: closes it when destroyed, unless Close or Release came first. That last
// close is best effort (one attempt of at most a second); what it misses, the session's TTL frees.
// May outlive the Client.
//
// Thread-safety: the calls may come from any threads (the server answers ABORTED to two pieces of
// work at once on one session); moving, Close, Release and destruction need the caller's own lock.
class Session {
 public:
  Session() = default;  // owns nothing; id() is 0
  Session(Session&& other) noexcept;
  Session& operator=(Session&& other) noexcept;
  ~Session();

  uint64_t id() const { return id_; }
  // Gives up ownership: the session stays open on the server. Returns its id.
  uint64_t Release();
  // Frees the session now and says how that went. A second call does nothing.
  absl::Status Close();

  // The same calls as Client's, for this session. NOT_FOUND when it is closed or its TTL has
  // passed.
  absl::StatusOr<v1::Session> Get() const;
  absl::StatusOr<v1::Session> ClearLatch() const;
  absl::StatusOr<v1::Session> Truncate(int64_t length_tokens) const;
  absl::StatusOr<v1::Session> Reset() const;

 private:
  friend class Client;
  Session(std::shared_ptr<Connection> connection, uint64_t id);

  std::shared_ptr<Connection> connection_;
  uint64_t id_ = 0;
};

}  // namespace latchd::client
