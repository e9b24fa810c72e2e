#pragma once

#include <grpcpp/client_context.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/random/random.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "client/cancellation.h"
#include "client/errors.h"
#include "client/options.h"
#include "client/retry.h"
#include "latchd/v1/decode.grpc.pb.h"

namespace latchd::client {

enum class Idempotency { kIdempotent, kOnce };

// The channel with its options, shared by a Client and what it handed out. Internal. Thread-safe.
class Connection {
 public:
  // See Client::Connect.
  static absl::StatusOr<std::shared_ptr<Connection>> Open(const std::string& address,
                                                          const ClientOptions& options);

  const ClientOptions& options() const { return options_; }
  v1::DecodeService::Stub& stub() { return *stub_; }

  // Gives a context the deadline of one call; none for an infinite timeout.
  static void SetTimeout(grpc::ClientContext& context, absl::Time deadline);

  // One unary call; the retries of an idempotent one share the deadline.
  template <class Request, class Response>
  absl::StatusOr<Response> Unary(Idempotency idempotency,
                                 grpc::Status (v1::DecodeService::Stub::*method)(
                                     grpc::ClientContext*, const Request&, Response*),
                                 const Request& request, absl::Duration timeout,
                                 Cancellation* cancellation = nullptr);

 private:
  Connection(ClientOptions options, std::unique_ptr<v1::DecodeService::Stub> stub);

  const ClientOptions options_;
  const std::unique_ptr<v1::DecodeService::Stub> stub_;
};

template <class Request, class Response>
absl::StatusOr<Response> Connection::Unary(Idempotency idempotency,
                                           grpc::Status (v1::DecodeService::Stub::*method)(
                                               grpc::ClientContext*, const Request&, Response*),
                                           const Request& request, absl::Duration timeout,
                                           Cancellation* cancellation) {
  const absl::Time deadline = absl::Now() + timeout;
  const int max_retries = idempotency == Idempotency::kIdempotent ? options_.retry.max_retries : 0;
  absl::BitGen jitter;
  for (int retry = 0;; ++retry) {
    Response response;
    absl::Status status;
    {
      grpc::ClientContext context;
      SetTimeout(context, deadline);
      CancellableScope scope(cancellation, &context);
      status = FromGrpcStatus(((*stub_).*method)(&context, request, &response));
    }
    if (status.ok()) return response;
    if (retry >= max_retries || !IsRetryable(status)) return status;
    const absl::Duration delay =
        RetryDelay(options_.retry, retry, absl::Uniform(jitter, 0.0, 1.0), status);
    // A wait that the deadline would cut short helps nobody: the caller learns the real error now.
    if (absl::Now() + delay >= deadline) return status;
    absl::SleepFor(delay);
  }
}

}  // namespace latchd::client
