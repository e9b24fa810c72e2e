#include "server/decode_service.h"

#include <utility>

#include "absl/time/clock.h"
#include "server/generate_stream.h"
#include "server/grpc_status.h"
#include "server/prompt.h"
#include "server/proto_convert.h"
#include "server/request_check.h"
#include "server/step_stream.h"
#include "server/unary_call.h"

namespace latchd {
absl::Status NoTokenizerError() {
  return absl::UnimplementedError("this model has no tokenizer; the daemon serves token ids only");
}

absl::Status DecodeService::CheckFaultInjection() const {
  if (context_.fault_injection) return absl::OkStatus();
  return absl::UnimplementedError("the daemon runs without --enable-fault-injection");
}

grpc::ServerUnaryReactor* DecodeService::SessionCall(
    grpc::CallbackServerContext* rpc, const char* method, uint64_t session_id,
    v1::Session* response, std::function<absl::StatusOr<SessionInfo>()> handler) {
  return Unary(rpc, method, Where::kWorker, [=, handler = std::move(handler)]() -> absl::Status {
    absl::Status status = CheckSessionId(session_id);
    if (!status.ok()) return status;
    auto info = handler();
    if (!info.ok()) return info.status();
    FillSession(*info, response);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* DecodeService::GetModel(grpc::CallbackServerContext* rpc,
                                                  const v1::GetModelRequest*,
                                                  v1::GetModelResponse* response) {
  return Unary(rpc, "GetModel", Where::kHere, [this, response] {
    const Engine& engine = context_.engine;
    FillModel(engine.model(), engine.status(), engine.tokenizer(), response);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* DecodeService::GetStatus(grpc::CallbackServerContext* rpc,
                                                   const v1::GetStatusRequest*,
                                                   v1::GetStatusResponse* response) {
  return Unary(rpc, "GetStatus", Where::kHere, [this, response] {
    FillStatus(context_.engine.status(), context_.drain.fired(), context_.fault_injection,
               absl::Now(), response);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* DecodeService::OpenSession(grpc::CallbackServerContext* rpc,
                                                     const v1::OpenSessionRequest* request,
                                                     v1::OpenSessionResponse* response) {
  return Unary(rpc, "OpenSession", Where::kWorker, [=, this]() -> absl::Status {
    auto options = CheckOpenSession(*request, context_.engine.model().vocab);
    if (!options.ok()) return options.status();
    if (context_.drain.fired()) return DrainingError();
    auto info = context_.engine.OpenSession(*options);
    if (!info.ok()) return info.status();
    // The client is gone and will never learn the id: do not leave its memory reserved until the
    // TTL.
    if (rpc->IsCancelled()) {
      (void)context_.engine.CloseSession(info->id);
      return absl::CancelledError("cancelled by the client");
    }
    FillSession(*info, response->mutable_session());
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* DecodeService::GetSession(grpc::CallbackServerContext* rpc,
                                                    const v1::GetSessionRequest* request,
                                                    v1::Session* response) {
  return SessionCall(rpc, "GetSession", request->session_id(), response,
                     [=, this] { return context_.engine.GetSession(request->session_id()); });
}

grpc::ServerUnaryReactor* DecodeService::ListSessions(grpc::CallbackServerContext* rpc,
                                                      const v1::ListSessionsRequest*,
                                                      v1::ListSessionsResponse* response) {
  return Unary(rpc, "ListSessions", Where::kWorker, [this, response] {
    for (const SessionInfo& info : context_.engine.ListSessions()) {
      FillSession(info, response->add_sessions());
    }
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* DecodeService::ClearLatch(grpc::CallbackServerContext* rpc,
                                                    const v1::ClearLatchRequest* request,
                                                    v1::Session* response) {
  return SessionCall(rpc, "ClearLatch", request->session_id(), response,
                     [=, this] { return context_.engine.ClearLatch(request->session_id()); });
}

grpc::ServerUnaryReactor* DecodeService::Truncate(grpc::CallbackServerContext* rpc,
                                                  const v1::TruncateRequest* request,
                                                  v1::Session* response) {
  return SessionCall(
      rpc, "Truncate", request->session_id(), response, [=, this]() -> absl::StatusOr<SessionInfo> {
        absl::Status status = CheckTruncate(*request);
        if (!status.ok()) return status;
        return context_.engine.Truncate(request->session_id(), request->length_tokens());
      });
}

grpc::ServerUnaryReactor* DecodeService::Reset(grpc::CallbackServerContext* rpc,
                                               const v1::ResetRequest* request,
                                               v1::Session* response) {
  return SessionCall(rpc, "Reset", request->session_id(), response,
                     [=, this] { return context_.engine.Reset(request->session_id()); });
}

grpc::ServerUnaryReactor* DecodeService::CloseSession(grpc::CallbackServerContext* rpc,
                                                      const v1::CloseSessionRequest* request,
                                                      v1::CloseSessionResponse*) {
  return Unary(rpc, "CloseSession", Where::kWorker, [=, this]() -> absl::Status {
    absl::Status status = CheckSessionId(request->session_id());
    if (!status.ok()) return status;
    return context_.engine.CloseSession(request->session_id());
  });
}

grpc::ServerUnaryReactor* DecodeService::Prefill(grpc::CallbackServerContext* rpc,
                                                 const v1::PrefillRequest* request,
                                                 v1::PrefillResponse* response) {
  auto* call = new PrefillCall(context_, rpc);
  const absl::Time deadline = ToAbslDeadline(rpc->deadline());
  const bool accepted = context_.workers.TryRun([=, this, link = call->link()] {
    Engine& engine = context_.engine;
    absl::StatusOr<latchd::PrefillRequest> checked = DrainingError();
    if (!context_.drain.fired()) checked = PrepareForSession(engine, *request);
    if (!checked.ok()) return call->End(ToGrpcStatus(checked.status()));
    checked->deadline = deadline;
    const int64_t prompt_tokens = static_cast<int64_t>(checked->tokens.size());
    WorkTracker::Token pending = context_.tracker.Begin(absl::Now());
    const RequestId id = engine.Prefill(
        *std::move(checked), [=, this, pending = std::move(pending)](
                                 const absl::StatusOr<PrefillResult>& result) mutable {
          pending.reset();
          if (!result.ok()) return call->End(ToGrpcStatus(result.status()));
          if (result->violation) return call->End(ToGrpcStatus(*result->violation));
          FillPrefill(*result, prompt_tokens, context_.engine.tokenizer(), response);
          call->End(grpc::Status::OK);
        });
    link->Submitted(engine, id);
  });
  if (!accepted) call->End(ToGrpcStatus(BusyError()));
  return call;
}

grpc::ServerBidiReactor<v1::StepRequest, v1::StepResponse>* DecodeService::Step(
    grpc::CallbackServerContext* rpc) {
  return StepStream::Start(context_, rpc);
}

grpc::ServerWriteReactor<v1::GenerateResponse>* DecodeService::Generate(
    grpc::CallbackServerContext* rpc, const v1::GenerateRequest* request) {
  return GenerateStream::Start(context_, rpc, request);
}

grpc::ServerUnaryReactor* DecodeService::InjectFault(grpc::CallbackServerContext* rpc,
                                                     const v1::InjectFaultRequest* request,
                                                     v1::InjectFaultResponse*) {
  return Unary(rpc, "InjectFault", Where::kWorker, [=, this]() -> absl::Status {
    absl::Status status = CheckFaultInjection();
    if (!status.ok()) return status;
    auto fault = CheckInjectFault(*request);
    if (!fault.ok()) return fault.status();
    return context_.engine.InjectFault(*fault);
  });
}

grpc::ServerUnaryReactor* DecodeService::GetKvDigest(grpc::CallbackServerContext* rpc,
                                                     const v1::GetKvDigestRequest* request,
                                                     v1::GetKvDigestResponse* response) {
  return Unary(rpc, "GetKvDigest", Where::kWorker, [=, this]() -> absl::Status {
    absl::Status status = CheckFaultInjection();
    if (status.ok()) status = CheckSessionId(request->session_id());
    if (!status.ok()) return status;
    auto digest = context_.engine.KvDigest(request->session_id());
    if (!digest.ok()) return digest.status();
    auto info = context_.engine.GetSession(request->session_id());
    if (!info.ok()) return info.status();
    response->set_sha256(*digest);
    response->set_length_tokens(info->length_tokens);
    return absl::OkStatus();
  });
}

}  // namespace latchd
