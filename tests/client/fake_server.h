#pragma once

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "client/client.h"
#include "google/rpc/status.pb.h"
#include "latchd/v1/decode.grpc.pb.h"

namespace latchd::client {

// A DecodeService that counts calls and fails them as told. Its sessions are names only.
class FakeService : public v1::DecodeService::Service {
 public:
  using Context = grpc::ServerContext;

  int calls(const std::string& method) {
    absl::MutexLock lock(&mutex_);
    return calls_[method];
  }
  // The next `count` calls, of any method, end with `status`.
  void FailNext(int count, grpc::Status status) {
    absl::MutexLock lock(&mutex_);
    failures_ = count;
    failure_ = std::move(status);
  }
  std::vector<uint64_t> closed() {
    absl::MutexLock lock(&mutex_);
    return closed_;
  }
  // What Step answers; set before the server starts.
  std::function<v1::StepResponse(const v1::StepRequest&)> step;
  // Tokens that Generate sends before its finish; it stops early when the client has cancelled.
  int64_t generate_tokens = 3;
  absl::Duration generate_pause = absl::ZeroDuration();
  bool generate_finish = true;
  absl::Notification generate_cancelled;

#define LATCHD_FAKE_UNARY(Method, Request, Response) \
  grpc::Status Method(Context*, const v1::Request*, v1::Response*) override { return Hit(#Method); }
  LATCHD_FAKE_UNARY(GetModel, GetModelRequest, GetModelResponse)
  LATCHD_FAKE_UNARY(GetStatus, GetStatusRequest, GetStatusResponse)
  LATCHD_FAKE_UNARY(GetSession, GetSessionRequest, Session)
  LATCHD_FAKE_UNARY(ListSessions, ListSessionsRequest, ListSessionsResponse)
  LATCHD_FAKE_UNARY(ClearLatch, ClearLatchRequest, Session)
  LATCHD_FAKE_UNARY(Truncate, TruncateRequest, Session)
  LATCHD_FAKE_UNARY(Reset, ResetRequest, Session)
  LATCHD_FAKE_UNARY(Prefill, PrefillRequest, PrefillResponse)
  LATCHD_FAKE_UNARY(Tokenize, TokenizeRequest, TokenizeResponse)
  LATCHD_FAKE_UNARY(Detokenize, DetokenizeRequest, DetokenizeResponse)
  LATCHD_FAKE_UNARY(ApplyChatTemplate, ApplyChatTemplateRequest, ApplyChatTemplateResponse)
  LATCHD_FAKE_UNARY(InjectFault, InjectFaultRequest, InjectFaultResponse)
  LATCHD_FAKE_UNARY(GetKvDigest, GetKvDigestRequest, GetKvDigestResponse)
#undef LATCHD_FAKE_UNARY

  grpc::Status OpenSession(Context*, const v1::OpenSessionRequest*,
                           v1::OpenSessionResponse* response) override {
    response->mutable_session()->set_session_id(++opened_);
    return Hit("OpenSession");
  }
  grpc::Status CloseSession(Context*, const v1::CloseSessionRequest* request,
                            v1::CloseSessionResponse*) override {
    grpc::Status status = Hit("CloseSession");
    absl::MutexLock lock(&mutex_);
    if (status.ok()) closed_.push_back(request->session_id());
    return status;
  }
  grpc::Status Step(Context*,
                    grpc::ServerReaderWriter<v1::StepResponse, v1::StepRequest>* stream) override {
    if (grpc::Status status = Hit("Step"); !status.ok()) return status;
    v1::StepRequest request;
    while (stream->Read(&request)) stream->Write(step(request));
    return grpc::Status::OK;
  }
  grpc::Status Generate(Context* context, const v1::GenerateRequest*,
                        grpc::ServerWriter<v1::GenerateResponse>* writer) override {
    if (grpc::Status status = Hit("Generate"); !status.ok()) return status;
    for (int64_t i = 0; i < generate_tokens; ++i) {
      if (context->IsCancelled()) {
        generate_cancelled.Notify();
        return grpc::Status::CANCELLED;
      }
      v1::GenerateResponse response;
      response.mutable_token()->mutable_next()->set_token_id(static_cast<int32_t>(i));
      writer->Write(response);
      absl::SleepFor(generate_pause);
    }
    v1::GenerateResponse response;
    response.mutable_finish()->set_reason(v1::FINISH_REASON_LENGTH);
    if (generate_finish) writer->Write(response);
    return grpc::Status::OK;
  }

 private:
  grpc::Status Hit(const std::string& method) {
    absl::MutexLock lock(&mutex_);
    ++calls_[method];
    if (failures_ == 0) return grpc::Status::OK;
    --failures_;
    return failure_;
  }

  absl::Mutex mutex_;
  std::map<std::string, int> calls_ ABSL_GUARDED_BY(mutex_);
  int failures_ ABSL_GUARDED_BY(mutex_) = 0;
  grpc::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> closed_ ABSL_GUARDED_BY(mutex_);
  std::atomic<uint64_t> opened_ = 0;
};

// The service on a free port of 127.0.0.1.
class FakeServer {
 public:
  FakeServer() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&service);
    server_ = builder.BuildAndStart();
  }
  ~FakeServer() { Stop(); }
  void Stop() { server_->Shutdown(absl::ToChronoTime(absl::Now() + absl::Seconds(1))); }

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  // Backoffs of a millisecond, so that retries do not slow the tests down.
  std::unique_ptr<Client> Connect(int max_retries = 3) const {
    ClientOptions options;
    options.retry.max_retries = max_retries;
    options.retry.initial_backoff = absl::Milliseconds(1);
    auto client = Client::Connect(address(), options);
    return client.ok() ? *std::move(client) : nullptr;
  }

  FakeService service;

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// The gRPC status of `code` with `detail` in its google.rpc.Status details, as the daemon sends it.
template <class Detail>
grpc::Status StatusWithDetail(grpc::StatusCode code, const std::string& message,
                              const Detail& detail) {
  google::rpc::Status status;
  status.set_code(code);
  status.set_message(message);
  status.add_details()->PackFrom(detail);
  return grpc::Status(code, message, status.SerializeAsString());
}

}  // namespace latchd::client
