#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>

#include "latchd/v1/attention.grpc.pb.h"
#include "runtime/attention/attention_engine.h"
#include "runtime/mutex.h"
#include "server/service_context.h"

namespace latchd {

// Export: a session's caches in chunks, one write in flight, the next when gRPC took the last: a
// slow reader holds back nothing but itself. Deletes itself.
class ExportStream final : public grpc::ServerWriteReactor<v1::ExportAttentionResponse> {
 public:
  static constexpr size_t kChunkBytes = 1 << 20;

  // The reactor to hand to gRPC. `request` lives until OnDone. REQUIRES: context.attention.
  static ExportStream* Start(ServiceContext& context, grpc::CallbackServerContext* rpc,
                             const v1::ExportAttentionRequest* request);

  void OnWriteDone(bool ok) override;
  void OnDone() override { delete this; }

 private:
  ExportStream(ServiceContext& context, grpc::CallbackServerContext* rpc)
      : context_(context), rpc_(rpc), record_(context, "Attention.Export", rpc->peer()) {}
  void Read(uint64_t session);  // on a worker
  void Next();
  void End(const grpc::Status& status);

  ServiceContext& context_;
  grpc::CallbackServerContext* const rpc_;
  RpcRecord record_;
  std::string file_;  // one thread at a time: the worker, then gRPC's write callbacks
  size_t sent_ = 0;
  size_t chunk_bytes_ = 0;  // smaller than kChunkBytes where the daemon's messages are
  v1::ExportAttentionResponse write_;
};

// Import: collects the file, at most as much as the session's own export, then hands it over on a
// worker. Deletes itself.
class ImportStream final : public grpc::ServerReadReactor<v1::ImportAttentionRequest> {
 public:
  static ImportStream* Start(ServiceContext& context, grpc::CallbackServerContext* rpc,
                             v1::AttentionSession* response);

  void OnReadDone(bool ok) override;
  void OnDone() override { delete this; }

 private:
  ImportStream(ServiceContext& context, grpc::CallbackServerContext* rpc,
               v1::AttentionSession* response)
      : context_(context),
        rpc_(rpc),
        response_(response),
        record_(context, "Attention.Import", rpc->peer()) {}
  absl::Status Accept();  // what read_ holds
  absl::Status Apply();   // on a worker
  void End(const grpc::Status& status);

  ServiceContext& context_;
  grpc::CallbackServerContext* const rpc_;
  v1::AttentionSession* const response_;
  RpcRecord record_;
  uint64_t session_ = 0;
  int64_t max_bytes_ = 0;
  std::string file_;
  v1::ImportAttentionRequest read_;  // owned by gRPC while a read is in flight
};

}  // namespace latchd
