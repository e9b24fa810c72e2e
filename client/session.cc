#include "client/session.h"

#include <algorithm>
#include <utility>

namespace latchd::client {
namespace {

using Stub = v1::DecodeService::Stub;

// A destructor must not hold its thread for the whole of a long call timeout.
constexpr absl::Duration kCloseTimeout = absl::Seconds(1);

template <class Request, class Response>
absl::StatusOr<Response> CallOn(Connection* connection, uint64_t id,
                                grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                             Response*),
                                Request request = {}) {
  if (connection == nullptr) return absl::FailedPreconditionError("Session: owns no session");
  request.set_session_id(id);
  return connection->Unary(Idempotency::kIdempotent, method, request,
                           connection->options().call_timeout);
}

}  // namespace

Session::Session(std::shared_ptr<Connection> connection, uint64_t id)
    : connection_(std::move(connection)), id_(id) {}

Session::Session(Session&& other) noexcept
    : connection_(std::move(other.connection_)), id_(std::exchange(other.id_, 0)) {}

Session& Session::operator=(Session&& other) noexcept {
  std::swap(connection_, other.connection_);
  std::swap(id_, other.id_);
  return *this;
}

Session::~Session() {
  if (connection_ == nullptr) return;
  v1::CloseSessionRequest request;
  request.set_session_id(id_);
  // kOnce although closing is idempotent: no backoff in a destructor.
  (void)connection_->Unary(Idempotency::kOnce, &Stub::CloseSession, request,
                           std::min(kCloseTimeout, connection_->options().call_timeout));
}

uint64_t Session::Release() {
  connection_.reset();
  return std::exchange(id_, 0);
}

absl::Status Session::Close() {
  if (connection_ == nullptr) return absl::OkStatus();
  const auto response =
      CallOn<v1::CloseSessionRequest>(connection_.get(), id_, &Stub::CloseSession);
  // NOT_FOUND: the TTL was quicker, which is what Close is for.
  if (!response.ok() && !absl::IsNotFound(response.status())) return response.status();
  Release();
  return absl::OkStatus();
}

absl::StatusOr<v1::Session> Session::Get() const {
  return CallOn<v1::GetSessionRequest>(connection_.get(), id_, &Stub::GetSession);
}

absl::StatusOr<v1::Session> Session::ClearLatch() const {
  return CallOn<v1::ClearLatchRequest>(connection_.get(), id_, &Stub::ClearLatch);
}

absl::StatusOr<v1::Session> Session::Truncate(int64_t length_tokens) const {
  v1::TruncateRequest request;
  request.set_length_tokens(length_tokens);
  return CallOn(connection_.get(), id_, &Stub::Truncate, request);
}

absl::StatusOr<v1::Session> Session::Reset() const {
  return CallOn<v1::ResetRequest>(connection_.get(), id_, &Stub::Reset);
}

}  // namespace latchd::client
