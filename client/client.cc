#include "client/client.h"

#include <utility>

namespace latchd::client {
namespace {

using Stub = v1::DecodeService::Stub;

// A short unary call under the connection's call_timeout.
template <class Request, class Response>
absl::StatusOr<Response> Short(Connection& connection, Idempotency idempotency,
                               grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                            Response*),
                               const Request& request) {
  return connection.Unary(idempotency, method, request, connection.options().call_timeout);
}

template <class Request>
Request ForSession(uint64_t session_id) {
  Request request;
  request.set_session_id(session_id);
  return request;
}

}  // namespace

Client::Client(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {}

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const std::string& address,
                                                        const ClientOptions& options) {
  auto connection = Connection::Open(address, options);
  if (!connection.ok()) return connection.status();
  return std::unique_ptr<Client>(new Client(*std::move(connection)));
}

absl::StatusOr<v1::GetModelResponse> Client::GetModel() {
  return Short(*connection_, Idempotency::kIdempotent, &Stub::GetModel, v1::GetModelRequest());
}

absl::StatusOr<v1::GetStatusResponse> Client::GetStatus() {
  return Short(*connection_, Idempotency::kIdempotent, &Stub::GetStatus, v1::GetStatusRequest());
}

absl::StatusOr<Session> Client::OpenSession(const v1::OpenSessionRequest& request) {
  auto response = Short(*connection_, Idempotency::kOnce, &Stub::OpenSession, request);
  if (!response.ok()) return response.status();
  return Session(connection_, response->session().session_id());
}

Session Client::Adopt(uint64_t session_id) { return Session(connection_, session_id); }

absl::StatusOr<v1::Session> Client::GetSession(uint64_t session_id) {
  return Short(*connection_, Idempotency::kIdempotent, &Stub::GetSession,
               ForSession<v1::GetSessionRequest>(session_id));
}

absl::StatusOr<std::vector<v1::Session>> Client::ListSessions() {
  auto response =
      Short(*connection_, Idempotency::kIdempotent, &Stub::ListSessions, v1::ListSessionsRequest());
  if (!response.ok()) return response.status();
  return std::vector<v1::Session>(response->sessions().begin(), response->sessions().end());
}

absl::StatusOr<v1::Session> Client::ClearLatch(uint64_t session_id) {
  return Short(*connection_, Idempotency::kIdempotent, &Stub::ClearLatch,
               ForSession<v1::ClearLatchRequest>(session_id));
}

absl::StatusOr<v1::Session> Client::Truncate(uint64_t session_id, int64_t length_tokens) {
  auto request = ForSession<v1::TruncateRequest>(session_id);
  request.set_length_tokens(length_tokens);
  return Short(*connection_, Idempotency::kIdempotent, &Stub::Truncate, request);
}

absl::StatusOr<v1::Session> Client::Reset(uint64_t session_id) {
  return Short(*connection_, Idempotency::kIdempotent, &Stub::Reset,
               ForSession<v1::ResetRequest>(session_id));
}

absl::Status Client::CloseSession(uint64_t session_id) {
  return Short(*connection_, Idempotency::kIdempotent, &Stub::CloseSession,
               ForSession<v1::CloseSessionRequest>(session_id))
      .status();
}

absl::StatusOr<v1::PrefillResponse> Client::Prefill(const v1::PrefillRequest& request,
                                                    const CallOptions& options) {
  return connection_->Unary(Idempotency::kOnce, &Stub::Prefill, request,
                            options.timeout.value_or(connection_->options().work_timeout),
                            options.cancellation);
}

std::unique_ptr<StepStream> Client::OpenStepStream(uint64_t session_id,
                                                   Cancellation* cancellation) {
  return std::unique_ptr<StepStream>(new StepStream(connection_, session_id, cancellation));
}

absl::StatusOr<v1::GenerateResponse::Finish> Client::Generate(const v1::GenerateRequest& request,
                                                              const TokenCallback& on_token,
                                                              const CallOptions& options) {
  grpc::ClientContext context;
  Connection::SetTimeout(
      context, absl::Now() + options.timeout.value_or(connection_->options().work_timeout));
  CancellableScope scope(options.cancellation, &context);
  auto reader = connection_->stub().Generate(&context, request);
  std::optional<v1::GenerateResponse::Finish> finish;
  bool wanted = true;
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
    if (response.has_finish()) finish = std::move(*response.mutable_finish());
    // After a cancel the loop goes on reading, without the callback, until gRPC says that the call
    // is over.
    if (!response.has_token() || on_token == nullptr || !wanted) continue;
    wanted = on_token(response.token());
    if (!wanted) context.TryCancel();
  }
  absl::Status status = FromGrpcStatus(reader->Finish());
  // The last token's callback may say stop when the server has already finished: still cancelled
  // for the caller.
  if (status.ok() && !wanted) return absl::CancelledError("cancelled by the token callback");
  if (!status.ok()) return status;
  if (!finish.has_value()) {
    return absl::InternalError("the server ended the generation without a finish message");
  }
  return *std::move(finish);
}

absl::StatusOr<v1::TokenizeResponse> Client::Tokenize(const v1::TokenizeRequest& request) {
  return Short(*connection_, Idempotency::kIdempotent, &Stub::Tokenize, request);
}

absl::StatusOr<std::string> Client::Detokenize(const std::vector<int32_t>& token_ids,
                                               bool skip_special_tokens) {
  v1::DetokenizeRequest request;
  request.mutable_token_ids()->Add(token_ids.begin(), token_ids.end());
  request.set_skip_special_tokens(skip_special_tokens);
  auto response = Short(*connection_, Idempotency::kIdempotent, &Stub::Detokenize, request);
  if (!response.ok()) return response.status();
  return std::move(*response->mutable_text());
}

absl::StatusOr<v1::ApplyChatTemplateResponse> Client::ApplyChatTemplate(
    const std::vector<v1::ChatMessage>& messages) {
  v1::ApplyChatTemplateRequest request;
  request.mutable_messages()->Add(messages.begin(), messages.end());
  return Short(*connection_, Idempotency::kIdempotent, &Stub::ApplyChatTemplate, request);
}

absl::Status Client::InjectFault(const v1::InjectFaultRequest& request) {
  return Short(*connection_, Idempotency::kOnce, &Stub::InjectFault, request).status();
}

absl::StatusOr<v1::GetKvDigestResponse> Client::GetKvDigest(uint64_t session_id) {
  return Short(*connection_, Idempotency::kOnce, &Stub::GetKvDigest,
               ForSession<v1::GetKvDigestRequest>(session_id));
}

}  // namespace latchd::client
