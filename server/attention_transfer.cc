#include "server/attention_transfer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/attention_check.h"
#include "server/attention_convert.h"
#include "server/attention_tensor.h"
#include "server/grpc_status.h"
#include "server/request_check.h"
#include "server/unary_call.h"

namespace latchd {

ExportStream* ExportStream::Start(ServiceContext& context, grpc::CallbackServerContext* rpc,
                                  const v1::ExportAttentionRequest* request) {
  auto* stream = new ExportStream(context, rpc);
  const uint64_t session = request->session_id();
  const bool accepted = context.workers.TryRun([stream, session] { stream->Read(session); });
  if (!accepted) stream->End(ToGrpcStatus(BusyError()));
  return stream;
}

void ExportStream::Read(uint64_t session) {
  absl::Status status = CheckSessionId(session);
  if (!status.ok()) return End(ToGrpcStatus(status));
  auto file = context_.attention->ExportAttention(session);
  if (!file.ok()) return End(ToGrpcStatus(file.status()));
  file_ = *std::move(file);
  const int64_t room = context_.max_message_bytes - kMessageOverheadBytes;
  chunk_bytes_ = static_cast<size_t>(std::min<int64_t>(kChunkBytes, std::max<int64_t>(room, 1)));
  Next();
}

void ExportStream::Next() {
  if (rpc_->IsCancelled()) return End(ToGrpcStatus(absl::CancelledError("cancelled")));
  if (sent_ == file_.size()) return End(grpc::Status::OK);
  const size_t bytes = std::min(chunk_bytes_, file_.size() - sent_);
  write_.set_chunk(file_.data() + sent_, bytes);
  sent_ += bytes;
  StartWrite(&write_);
}

void ExportStream::OnWriteDone(bool ok) {
  if (!ok) return End(ToGrpcStatus(absl::CancelledError("cancelled")));
  Next();
}

void ExportStream::End(const grpc::Status& status) {
  record_.Done(status);
  Finish(status);
}

ImportStream* ImportStream::Start(ServiceContext& context, grpc::CallbackServerContext* rpc,
                                  v1::AttentionSession* response) {
  auto* stream = new ImportStream(context, rpc, response);
  if (context.drain.fired()) {
    stream->End(ToGrpcStatus(DrainingError()));
  } else {
    stream->StartRead(&stream->read_);
  }
  return stream;
}

absl::Status ImportStream::Accept() {
  if (session_ == 0) {
    absl::Status status = CheckSessionId(read_.session_id());
    if (!status.ok()) return status;
    const auto config = context_.attention->AttentionConfigOf(read_.session_id());
    if (!config.ok()) return config.status();
    session_ = read_.session_id();
    max_bytes_ = MaxImportBytes(**config);
  } else if (read_.session_id() != 0 && read_.session_id() != session_) {
    return BadField("session_id", absl::StrCat(session_, " or nothing after the first message"),
                    read_.session_id());
  }
  const int64_t bytes = static_cast<int64_t>(file_.size() + read_.chunk().size());
  if (bytes > max_bytes_) {
    return BadField("chunk", absl::StrCat("a file of at most ", max_bytes_, " bytes"),
                    absl::StrCat(bytes, " bytes or more"));
  }
  file_ += read_.chunk();
  return absl::OkStatus();
}

void ImportStream::OnReadDone(bool ok) {
  if (ok) {
    const absl::Status status = Accept();
    if (!status.ok()) return End(ToGrpcStatus(status));
    StartRead(&read_);
    return;
  }
  // Either the client is done or it is gone; a file cut short is refused as a whole, so that a
  // cancel which shows late does no harm.
  const bool accepted = context_.workers.TryRun([this] { End(ToGrpcStatus(Apply())); });
  if (!accepted) End(ToGrpcStatus(BusyError()));
}

absl::Status ImportStream::Apply() {
  if (rpc_->IsCancelled()) return absl::CancelledError("cancelled");
  if (session_ == 0) return BadField("session_id", "it in the first message", "no message");
  auto info = context_.attention->ImportAttention(session_, file_);
  if (!info.ok()) return info.status();
  FillAttentionSession(*info, response_);
  return absl::OkStatus();
}

void ImportStream::End(const grpc::Status& status) {
  record_.Done(status);
  Finish(status);
}

}  // namespace latchd
