#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "latchd/v1/decode.grpc.pb.h"
#include "server/service_context.h"
#include "server/unary_call.h"

namespace latchd {

// latchd.v1.DecodeService over gRPC's callback API. A thin shell: request_check judges what came,
// the engine does the work, proto_convert and grpc_status word the answer. Streams live in
// step_stream and generate_stream.
//
// No handler blocks a gRPC thread: calls that wait for the step loop or tokenise run on the worker
// pool.
class DecodeService final : public v1::DecodeService::CallbackService {
 public:
  // `context` must outlive the service.
  explicit DecodeService(ServiceContext& context) : context_(context) {}

  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* rpc,
                                     const v1::GetModelRequest* request,
                                     v1::GetModelResponse* response) override;
  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* rpc,
                                      const v1::GetStatusRequest* request,
                                      v1::GetStatusResponse* response) override;
  grpc::ServerUnaryReactor* OpenSession(grpc::CallbackServerContext* rpc,
                                        const v1::OpenSessionRequest* request,
                                        v1::OpenSessionResponse* response) override;
  grpc::ServerUnaryReactor* GetSession(grpc::CallbackServerContext* rpc,
                                       const v1::GetSessionRequest* request,
                                       v1::Session* response) override;
  grpc::ServerUnaryReactor* ListSessions(grpc::CallbackServerContext* rpc,
                                         const v1::ListSessionsRequest* request,
                                         v1::ListSessionsResponse* response) override;
  grpc::ServerUnaryReactor* ClearLatch(grpc::CallbackServerContext* rpc,
                                       const v1::ClearLatchRequest* request,
                                       v1::Session* response) override;
  grpc::ServerUnaryReactor* Truncate(grpc::CallbackServerContext* rpc,
                                     const v1::TruncateRequest* request,
                                     v1::Session* response) override;
  grpc::ServerUnaryReactor* Reset(grpc::CallbackServerContext* rpc, const v1::ResetRequest* request,
                                  v1::Session* response) override;
  grpc::ServerUnaryReactor* CloseSession(grpc::CallbackServerContext* rpc,
                                         const v1::CloseSessionRequest* request,
                                         v1::CloseSessionResponse* response) override;
  grpc::ServerUnaryReactor* Prefill(grpc::CallbackServerContext* rpc,
                                    const v1::PrefillRequest* request,
                                    v1::PrefillResponse* response) override;
  grpc::ServerBidiReactor<v1::StepRequest, v1::StepResponse>* Step(
      grpc::CallbackServerContext* rpc) override;
  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* rpc, const v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* rpc,
                                     const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* rpc,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override;
  grpc::ServerUnaryReactor* ApplyChatTemplate(grpc::CallbackServerContext* rpc,
                                              const v1::ApplyChatTemplateRequest* request,
                                              v1::ApplyChatTemplateResponse* response) override;
  grpc::ServerUnaryReactor* InjectFault(grpc::CallbackServerContext* rpc,
                                        const v1::InjectFaultRequest* request,
                                        v1::InjectFaultResponse* response) override;
  grpc::ServerUnaryReactor* GetKvDigest(grpc::CallbackServerContext* rpc,
                                        const v1::GetKvDigestRequest* request,
                                        v1::GetKvDigestResponse* response) override;

 private:
  grpc::ServerUnaryReactor* Unary(grpc::CallbackServerContext* rpc, const char* method, Where where,
                                  std::function<absl::Status()> handler) {
    return RunUnary(context_, rpc, method, where, std::move(handler));
  }
  grpc::ServerUnaryReactor* SessionCall(grpc::CallbackServerContext* rpc, const char* method,
                                        uint64_t session_id, v1::Session* response,
                                        std::function<absl::StatusOr<SessionInfo>()> handler);
  absl::Status CheckFaultInjection() const;

  ServiceContext& context_;
};

// Answer to a call that needs a tokenizer when the model has none.
absl::Status NoTokenizerError();

}  // namespace latchd
