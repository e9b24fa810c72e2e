#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "latchd/v1/decode.grpc.pb.h"
#include "runtime/mutex.h"
#include "server/service_context.h"

namespace latchd {

// One Generate stream. Tokens come on the step-loop thread, which never waits for a client: they
// queue here, one write is in flight, and a client that falls kMaxQueued messages behind ends its
// own generation with RESOURCE_EXHAUSTED. A call without a session opens one and always closes it,
// before the last message is sent.
//
// Lives until gRPC is done with it (OnDone) and the last engine callback has returned (shared_ptr).
class GenerateStream final : public grpc::ServerWriteReactor<v1::GenerateResponse>,
                             public std::enable_shared_from_this<GenerateStream> {
 public:
  static constexpr size_t kMaxQueued = 256;

  // The reactor to hand to gRPC. `request` lives until OnDone.
  static GenerateStream* Start(ServiceContext& context, grpc::CallbackServerContext* rpc,
                               const v1::GenerateRequest* request);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  GenerateStream(ServiceContext& context, grpc::CallbackServerContext* rpc,
                 const v1::GenerateRequest* request);
  void Prepare();  // on a worker: checks, tokenises, opens a session, submits
  void OnToken(const GeneratedToken& token);
  void OnSummary(const GenerateSummary& summary);
  void End(const GenerateSummary& summary);
  void EndWith(const grpc::Status& status);
  void CloseOwnSession();
  grpc::Status StatusOf(const GenerateSummary& summary);
  void Pump();

  ServiceContext& context_;
  const v1::GenerateRequest* const request_;
  RpcRecord record_;
  const absl::Time deadline_;
  std::shared_ptr<GenerateStream> self_;  // until OnDone
  CancelLink link_;
  WorkTracker::Token pending_;
  SessionId session_ = 0;  // set before the submit
  bool own_session_ = false;
  uint64_t seed_ = 0;

  Mutex mutex_;  // never held while calling gRPC or the engine
  std::deque<v1::GenerateResponse> queue_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool client_gone_ ABSL_GUARDED_BY(mutex_) = false;
  bool too_slow_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<grpc::Status> end_ ABSL_GUARDED_BY(mutex_);  // set once nothing more will be queued

  v1::GenerateResponse write_;  // owned by gRPC while writing_
};

}  // namespace latchd
