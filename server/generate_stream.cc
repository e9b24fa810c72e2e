#include "server/generate_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/grpc_status.h"
#include "server/prompt.h"
#include "server/proto_convert.h"

namespace latchd {

GenerateStream* GenerateStream::Start(ServiceContext& context, grpc::CallbackServerContext* rpc,
                                      const v1::GenerateRequest* request) {
  std::shared_ptr<GenerateStream> stream(new GenerateStream(context, rpc, request));
  stream->self_ = stream;
  if (context.drain.fired()) {
    stream->EndWith(ToGrpcStatus(DrainingError()));
  } else if (!context.workers.TryRun([stream] { stream->Prepare(); })) {
    stream->EndWith(
        ToGrpcStatus(absl::ResourceExhaustedError("too many calls are waiting; try again")));
  }
  return stream.get();
}

GenerateStream::GenerateStream(ServiceContext& context, grpc::CallbackServerContext* rpc,
                               const v1::GenerateRequest* request)
    : context_(context),
      request_(request),
      record_(context, "Generate", rpc->peer()),
      deadline_(ToAbslDeadline(rpc->deadline())) {}

void GenerateStream::Prepare() {
  auto prepared = PrepareForSession(context_.engine, *request_);
  if (!prepared.ok()) return EndWith(ToGrpcStatus(prepared.status()));
  seed_ = prepared->seed;
  latchd::GenerateRequest request = std::move(prepared->request);
  request.deadline = deadline_;
  if (link_.cancelled()) {
    return EndWith(grpc::Status(grpc::StatusCode::CANCELLED, "cancelled by the client"));
  }
  if (request.session == 0) {
    SessionOptions options;
    options.sampling = *request.sampling;
    // Room for what may be written and no more: other sessions can have the rest. A prompt that
    // does not fit is the engine's to refuse.
    const int64_t needed = static_cast<int64_t>(request.prompt.size()) + request.max_tokens;
    const int64_t longest = context_.engine.status().max_capacity;
    options.capacity_tokens = longest > 0 && needed > longest ? longest : needed;
    options.owner = "Generate";
    auto info = context_.engine.OpenSession(options);
    if (!info.ok()) return EndWith(ToGrpcStatus(info.status()));
    request.session = info->id;
    own_session_ = true;
  }
  session_ = request.session;
  pending_ = context_.tracker.Begin(absl::Now());
  const auto self = shared_from_this();
  const RequestId id = context_.engine.Generate(
      std::move(request), [self](const GeneratedToken& token) { self->OnToken(token); },
      [self](const GenerateSummary& summary) { self->OnSummary(summary); });
  link_.Submitted(context_.engine, id);
}

void GenerateStream::OnToken(const GeneratedToken& token) {
  v1::GenerateResponse message;
  FillToken(token, context_.engine.tokenizer(), message.mutable_token());
  bool cancel = false;
  {
    MutexLock lock(mutex_);
    if (client_gone_ || too_slow_) return;
    if (queue_.size() >= kMaxQueued) {
      too_slow_ = cancel = true;
      queue_.clear();
    } else {
      queue_.push_back(std::move(message));
    }
  }
  if (cancel) {
    // The engine may not be called from its own callback.
    context_.workers.Run(
        [self = shared_from_this()] { self->link_.Cancel(self->context_.engine); });
  } else {
    Pump();
  }
}

void GenerateStream::OnSummary(const GenerateSummary& summary) {
  pending_.reset();
  if (!own_session_) return End(summary);
  // Closing waits for the step loop, whose thread this is.
  context_.workers.Run([self = shared_from_this(), summary] {
    self->CloseOwnSession();
    self->End(summary);
  });
}

void GenerateStream::CloseOwnSession() {
  // It may have been closed by another client or its TTL already; either way it is gone.
  (void)context_.engine.CloseSession(session_);
}

grpc::Status GenerateStream::StatusOf(const GenerateSummary& summary) {
  switch (summary.reason) {
    case FinishReason::kCancelled:
      if (context_.drain.fired()) return ToGrpcStatus(DrainingError());
      return grpc::Status(grpc::StatusCode::CANCELLED, "cancelled");
    case FinishReason::kDeadline:
      return ToGrpcStatus(absl::DeadlineExceededError(
          absl::StrCat("deadline passed after ", summary.generated_tokens, " tokens")));
    case FinishReason::kError:
      return ToGrpcStatus(summary.error.ok() ? absl::InternalError("the engine gave no reason")
                                             : summary.error);
    default: return grpc::Status::OK;
  }
}

void GenerateStream::End(const GenerateSummary& summary) {
  grpc::Status status = StatusOf(summary);
  v1::GenerateResponse message;
  if (status.ok()) FillFinish(summary, session_, seed_, message.mutable_finish());
  {
    MutexLock lock(mutex_);
    if (too_slow_) {
      status = ToGrpcStatus(absl::ResourceExhaustedError(absl::StrCat(
          "the client fell ", kMaxQueued, " messages behind; the generation was cancelled")));
    } else if (status.ok() && !client_gone_) {
      // Beyond the bound on purpose: it is one message, and the client is owed it.
      queue_.push_back(std::move(message));
    }
    end_ = status;
  }
  Pump();
}

void GenerateStream::EndWith(const grpc::Status& status) {
  {
    MutexLock lock(mutex_);
    end_ = status;
  }
  Pump();
}

void GenerateStream::OnWriteDone(bool ok) {
  {
    MutexLock lock(mutex_);
    writing_ = false;
    if (!ok) {
      client_gone_ = true;
      queue_.clear();
    }
  }
  if (!ok) link_.Cancel(context_.engine);
  Pump();
}

void GenerateStream::OnCancel() {
  {
    MutexLock lock(mutex_);
    client_gone_ = true;
    queue_.clear();
  }
  link_.Cancel(context_.engine);
  Pump();
}

void GenerateStream::Pump() {
  bool write = false;
  std::optional<grpc::Status> end;
  {
    MutexLock lock(mutex_);
    if (writing_ || finished_) return;
    if (!queue_.empty()) {
      write_ = std::move(queue_.front());
      queue_.pop_front();
      write = writing_ = true;
    } else if (end_) {
      finished_ = true;
      end = *end_;
    }
  }
  if (write) StartWrite(&write_);
  if (end) {
    record_.Done(*end);
    Finish(*end);
  }
}

void GenerateStream::OnDone() { self_.reset(); }

}  // namespace latchd
