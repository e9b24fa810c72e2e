#include "server/attention_service.h"

#include <memory>
#include <utility>

#include "absl/time/clock.h"
#include "server/attention_check.h"
#include "server/attention_convert.h"
#include "server/attention_stream.h"
#include "server/attention_transfer.h"
#include "server/grpc_status.h"
#include "server/request_check.h"
#include "server/unary_call.h"

namespace latchd {

grpc::ServerUnaryReactor* AttentionService::SessionCall(
    grpc::CallbackServerContext* rpc, const char* method, uint64_t session_id,
    v1::AttentionSession* response, std::function<absl::StatusOr<AttentionSessionInfo>()> handler) {
  return RunUnary(context_, rpc, method, Where::kWorker,
                  [=, handler = std::move(handler)]() -> absl::Status {
                    absl::Status status = CheckSessionId(session_id);
                    if (!status.ok()) return status;
                    auto info = handler();
                    if (!info.ok()) return info.status();
                    FillAttentionSession(*info, response);
                    return absl::OkStatus();
                  });
}

grpc::ServerUnaryReactor* AttentionService::NewSessionCall(
    grpc::CallbackServerContext* rpc, const char* method, v1::AttentionSession* response,
    std::function<absl::StatusOr<AttentionSessionInfo>()> handler) {
  return RunUnary(context_, rpc, method, Where::kWorker,
                  [=, this, handler = std::move(handler)]() -> absl::Status {
                    if (context_.drain.fired()) return DrainingError();
                    auto info = handler();
                    if (!info.ok()) return info.status();
                    if (rpc->IsCancelled()) {
                      (void)engine_.CloseAttention(info->id);
                      return absl::CancelledError("cancelled by the client");
                    }
                    FillAttentionSession(*info, response);
                    return absl::OkStatus();
                  });
}

grpc::ServerUnaryReactor* AttentionService::GetCapabilities(grpc::CallbackServerContext* rpc,
                                                            const v1::GetCapabilitiesRequest*,
                                                            v1::GetCapabilitiesResponse* response) {
  return RunUnary(context_, rpc, "Attention.GetCapabilities", Where::kHere, [=, this] {
    FillCapabilities(context_.engine.status(), context_.max_message_bytes, response);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* AttentionService::OpenSession(
    grpc::CallbackServerContext* rpc, const v1::OpenAttentionSessionRequest* request,
    v1::AttentionSession* response) {
  return NewSessionCall(rpc, "Attention.OpenSession", response,
                        [=, this]() -> absl::StatusOr<AttentionSessionInfo> {
                          auto config = CheckOpenAttention(*request, context_.max_message_bytes);
                          if (!config.ok()) return config.status();
                          return engine_.OpenAttention(*std::move(config));
                        });
}

grpc::ServerUnaryReactor* AttentionService::GetSession(
    grpc::CallbackServerContext* rpc, const v1::GetAttentionSessionRequest* request,
    v1::AttentionSession* response) {
  return SessionCall(rpc, "Attention.GetSession", request->session_id(), response,
                     [=, this] { return engine_.GetAttention(request->session_id()); });
}

grpc::ServerUnaryReactor* AttentionService::ListSessions(
    grpc::CallbackServerContext* rpc, const v1::ListAttentionSessionsRequest*,
    v1::ListAttentionSessionsResponse* response) {
  return RunUnary(context_, rpc, "Attention.ListSessions", Where::kWorker, [=, this] {
    for (const AttentionSessionInfo& info : engine_.ListAttention()) {
      FillAttentionSession(info, response->add_sessions());
    }
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* AttentionService::Prefill(grpc::CallbackServerContext* rpc,
                                                    const v1::AttentionRequest* request,
                                                    v1::AttentionResponse* response) {
  auto* call = new UnaryCall(context_, rpc, "Attention.Prefill");
  const absl::Time deadline = ToAbslDeadline(rpc->deadline());
  const auto start = [=, this] {
    absl::Status status = context_.drain.fired() ? DrainingError() : absl::OkStatus();
    if (status.ok() && rpc->IsCancelled()) status = absl::CancelledError("cancelled by the client");
    if (status.ok()) status = CheckSessionId(request->session_id());
    if (!status.ok()) return call->End(ToGrpcStatus(status));
    auto config = engine_.AttentionConfigOf(request->session_id());
    if (!config.ok()) return call->End(ToGrpcStatus(config.status()));
    auto checked = CheckAttentionCall(*request, **config, AttentionCallKind::kPrefill,
                                      context_.max_message_bytes);
    if (!checked.ok()) return call->End(ToGrpcStatus(checked.status()));
    checked->deadline = deadline;
    const int64_t q_sequence = checked->q_sequence;
    // `request` lives until End, and with it what the call's views point into.
    engine_.AttentionPrefill(
        *std::move(checked),
        [=, config = *std::move(config), pending = context_.tracker.Begin(absl::Now())](
            absl::StatusOr<AttentionResult> result) mutable {
          pending.reset();
          if (!result.ok()) return call->End(ToGrpcStatus(result.status()));
          if (result->violation) return call->End(ToGrpcStatus(*result->violation));
          FillAttentionResult(*std::move(result), *config, q_sequence, response);
          response->set_session_id(request->session_id());
          response->set_tag(request->tag());
          call->End(grpc::Status::OK);
        });
  };
  if (!context_.workers.TryRun(start)) call->End(ToGrpcStatus(BusyError()));
  return call;
}

grpc::ServerBidiReactor<v1::AttentionRequest, v1::AttentionResponse>* AttentionService::Step(
    grpc::CallbackServerContext* rpc) {
  return AttentionStream::Start(context_, rpc);
}

grpc::ServerUnaryReactor* AttentionService::Fork(grpc::CallbackServerContext* rpc,
                                                 const v1::ForkAttentionRequest* request,
                                                 v1::AttentionSession* response) {
  return NewSessionCall(rpc, "Attention.Fork", response,
                        [=, this]() -> absl::StatusOr<AttentionSessionInfo> {
                          absl::Status status = CheckSessionId(request->session_id());
                          if (!status.ok()) return status;
                          return engine_.ForkAttention(request->session_id());
                        });
}

grpc::ServerUnaryReactor* AttentionService::Truncate(grpc::CallbackServerContext* rpc,
                                                     const v1::TruncateAttentionRequest* request,
                                                     v1::AttentionSession* response) {
  return SessionCall(rpc, "Attention.Truncate", request->session_id(), response,
                     [=, this]() -> absl::StatusOr<AttentionSessionInfo> {
                       absl::Status status = CheckTruncateAttention(*request);
                       if (!status.ok()) return status;
                       return engine_.TruncateAttention(request->session_id(), request->length());
                     });
}

grpc::ServerUnaryReactor* AttentionService::ClearLatch(
    grpc::CallbackServerContext* rpc, const v1::ClearAttentionLatchRequest* request,
    v1::AttentionSession* response) {
  return SessionCall(rpc, "Attention.ClearLatch", request->session_id(), response,
                     [=, this] { return engine_.ClearAttentionLatch(request->session_id()); });
}

grpc::ServerWriteReactor<v1::ExportAttentionResponse>* AttentionService::Export(
    grpc::CallbackServerContext* rpc, const v1::ExportAttentionRequest* request) {
  return ExportStream::Start(context_, rpc, request);
}

grpc::ServerReadReactor<v1::ImportAttentionRequest>* AttentionService::Import(
    grpc::CallbackServerContext* rpc, v1::AttentionSession* response) {
  return ImportStream::Start(context_, rpc, response);
}

grpc::ServerUnaryReactor* AttentionService::CloseSession(
    grpc::CallbackServerContext* rpc, const v1::CloseAttentionSessionRequest* request,
    v1::CloseAttentionSessionResponse*) {
  return RunUnary(context_, rpc, "Attention.CloseSession", Where::kWorker,
                  [=, this]() -> absl::Status {
                    absl::Status status = CheckSessionId(request->session_id());
                    if (!status.ok()) return status;
                    return engine_.CloseAttention(request->session_id());
                  });
}

}  // namespace latchd
