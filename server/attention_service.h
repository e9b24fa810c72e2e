#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "latchd/v1/attention.grpc.pb.h"
#include "runtime/attention/attention_engine.h"
#include "server/service_context.h"

namespace latchd {

// latchd.v1.AttentionService over gRPC's callback API. A thin shell, as DecodeService: what came is
// judged by attention_check, answers are worded by attention_convert and grpc_status. Streams live
// in attention_stream (Step) and attention_transfer (Export, Import).
//
// No handler blocks a gRPC thread: what waits for the step loop or copies caches runs on a worker.
class AttentionService final : public v1::AttentionService::CallbackService {
 public:
  // `context` must outlive the service. REQUIRES: context.attention.
  explicit AttentionService(ServiceContext& context)
      : context_(context), engine_(*context.attention) {}

  grpc::ServerUnaryReactor* GetCapabilities(grpc::CallbackServerContext* rpc,
                                            const v1::GetCapabilitiesRequest* request,
                                            v1::GetCapabilitiesResponse* response) override;
  grpc::ServerUnaryReactor* OpenSession(grpc::CallbackServerContext* rpc,
                                        const v1::OpenAttentionSessionRequest* request,
                                        v1::AttentionSession* response) override;
  grpc::ServerUnaryReactor* GetSession(grpc::CallbackServerContext* rpc,
                                       const v1::GetAttentionSessionRequest* request,
                                       v1::AttentionSession* response) override;
  grpc::ServerUnaryReactor* ListSessions(grpc::CallbackServerContext* rpc,
                                         const v1::ListAttentionSessionsRequest* request,
                                         v1::ListAttentionSessionsResponse* response) override;
  grpc::ServerUnaryReactor* Prefill(grpc::CallbackServerContext* rpc,
                                    const v1::AttentionRequest* request,
                                    v1::AttentionResponse* response) override;
  grpc::ServerBidiReactor<v1::AttentionRequest, v1::AttentionResponse>* Step(
      grpc::CallbackServerContext* rpc) override;
  grpc::ServerUnaryReactor* Fork(grpc::CallbackServerContext* rpc,
                                 const v1::ForkAttentionRequest* request,
                                 v1::AttentionSession* response) override;
  grpc::ServerUnaryReactor* Truncate(grpc::CallbackServerContext* rpc,
                                     const v1::TruncateAttentionRequest* request,
                                     v1::AttentionSession* response) override;
  grpc::ServerUnaryReactor* ClearLatch(grpc::CallbackServerContext* rpc,
                                       const v1::ClearAttentionLatchRequest* request,
                                       v1::AttentionSession* response) override;
  grpc::ServerWriteReactor<v1::ExportAttentionResponse>* Export(
      grpc::CallbackServerContext* rpc, const v1::ExportAttentionRequest* request) override;
  grpc::ServerReadReactor<v1::ImportAttentionRequest>* Import(
      grpc::CallbackServerContext* rpc, v1::AttentionSession* response) override;
  grpc::ServerUnaryReactor* CloseSession(grpc::CallbackServerContext* rpc,
                                         const v1::CloseAttentionSessionRequest* request,
                                         v1::CloseAttentionSessionResponse* response) override;

 private:
  // Runs `handler` on a worker; an OK answer is the session's state.
  grpc::ServerUnaryReactor* SessionCall(
      grpc::CallbackServerContext* rpc, const char* method, uint64_t session_id,
      v1::AttentionSession* response,
      std::function<absl::StatusOr<AttentionSessionInfo>()> handler);
  // As SessionCall, for calls that make a session: refused while draining, and closed again when
  // the client is gone and would never learn the id.
  grpc::ServerUnaryReactor* NewSessionCall(
      grpc::CallbackServerContext* rpc, const char* method, v1::AttentionSession* response,
      std::function<absl::StatusOr<AttentionSessionInfo>()> handler);

  ServiceContext& context_;
  AttentionEngine& engine_;
};

}  // namespace latchd
