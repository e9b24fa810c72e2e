#include "server/step_stream.h"

#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "server/grpc_status.h"
#include "server/proto_convert.h"
#include "server/request_check.h"

namespace latchd {

StepStream* StepStream::Start(ServiceContext& context, grpc::CallbackServerContext* rpc) {
  std::shared_ptr<StepStream> stream(new StepStream(context, rpc));
  stream->self_ = stream;
  const uint64_t handle = context.drain.Subscribe([weak = std::weak_ptr<StepStream>(stream)] {
    if (auto live = weak.lock()) live->Drain();
  });
  {
    MutexLock lock(stream->mutex_);
    stream->drain_handle_ = handle;
  }
  stream->Pump();
  return stream.get();
}

StepStream::StepStream(ServiceContext& context, grpc::CallbackServerContext* rpc)
    : context_(context),
      record_(context, "Step", rpc->peer()),
      deadline_(ToAbslDeadline(rpc->deadline())) {}

void StepStream::OnReadDone(bool ok) {
  if (ok) Accept(read_);
  {
    MutexLock lock(mutex_);
    reading_ = false;
    if (!ok) half_closed_ = true;
  }
  Pump();
}

void StepStream::Accept(const v1::StepRequest& message) {
  auto checked = CheckStep(message, context_.engine.model().vocab);
  Entry entry;
  entry.answer.set_session_id(message.session_id());
  entry.answer.set_tag(message.tag());
  if (checked.ok()) {
    entry.session = message.session_id();
    entry.request = *std::move(checked);
    entry.request.deadline = deadline_;
    entry.pending = context_.tracker.Begin(absl::Now());
  } else {
    entry.phase = Phase::kDone;
    const grpc::Status status = ToGrpcStatus(checked.status());
    entry.answer.mutable_error()->set_code(status.error_code());
    entry.answer.mutable_error()->set_message(status.error_message());
  }
  uint64_t sequence = 0;
  bool submit = false;
  {
    MutexLock lock(mutex_);
    if (finished_ || cancelled_) return;
    submit = entry.phase != Phase::kDone;
    for (const Entry& earlier : entries_) {
      if (earlier.session == entry.session && earlier.phase != Phase::kDone) submit = false;
    }
    if (submit) entry.phase = Phase::kSubmitted;
    sequence = first_ + entries_.size();
    entries_.push_back(std::move(entry));
  }
  if (submit) Submit(sequence);
}

// REQUIRES: the entry's phase was just made kSubmitted, so it stays until its answer.
void StepStream::Submit(uint64_t sequence) {
  StepRequest request;
  std::shared_ptr<CancelLink> link;
  {
    MutexLock lock(mutex_);
    request = At(sequence).request;
    link = At(sequence).link;
  }
  const RequestId id = context_.engine.Step(
      request, [self = shared_from_this(), sequence](const absl::StatusOr<StepResult>& result) {
        self->Answer(sequence, result);
      });
  link->Submitted(context_.engine, id);
}

void StepStream::Answer(uint64_t sequence, const absl::StatusOr<StepResult>& result) {
  std::optional<uint64_t> next;
  {
    MutexLock lock(mutex_);
    Entry& entry = At(sequence);
    if (result.ok()) {
      FillStep(*result, context_.engine.tokenizer(), &entry.answer);
    } else {
      const grpc::Status status = ToGrpcStatus(result.status());
      entry.answer.mutable_error()->set_code(status.error_code());
      entry.answer.mutable_error()->set_message(status.error_message());
    }
    entry.phase = Phase::kDone;
    entry.pending.reset();
    for (uint64_t i = sequence + 1; i < first_ + entries_.size() && !next; ++i) {
      if (At(i).session == entry.session && At(i).phase == Phase::kWaiting) next = i;
    }
    if (next) At(*next).phase = Phase::kSubmitted;
  }
  // The next step of this session is under way before this answer is serialised.
  if (next) Submit(*next);
  Pump();
}

void StepStream::OnWriteDone(bool ok) {
  {
    MutexLock lock(mutex_);
    writing_ = false;
  }
  if (!ok) CancelAll();  // the client is gone
  Pump();
}

void StepStream::OnCancel() {
  CancelAll();
  Pump();
}

void StepStream::CancelAll() {
  std::vector<std::shared_ptr<CancelLink>> links;
  {
    MutexLock lock(mutex_);
    cancelled_ = true;
    for (Entry& entry : entries_) {
      if (entry.phase == Phase::kSubmitted) links.push_back(entry.link);
      if (entry.phase == Phase::kWaiting) {
        entry.phase = Phase::kDone;
        entry.pending.reset();
      }
    }
  }
  for (const auto& link : links) link->Cancel(context_.engine);
}

void StepStream::Drain() {
  {
    MutexLock lock(mutex_);
    draining_ = true;
  }
  Pump();
}

void StepStream::Pump() {
  const auto self = shared_from_this();
  bool started_read = false;
  while (true) {
    bool write = false, read = false, finish = false;
    grpc::Status end;
    {
      MutexLock lock(mutex_);
      if (started_read) --starting_reads_;
      if (finished_) return;
      while (cancelled_ && !entries_.empty() && entries_.front().phase == Phase::kDone) {
        PopFront();  // nobody reads the answers
      }
      if (!writing_ && !entries_.empty() && entries_.front().phase == Phase::kDone) {
        write_ = std::move(entries_.front().answer);
        PopFront();
        write = writing_ = true;
      }
      const bool closing = half_closed_ || cancelled_ || draining_;
      if (!reading_ && !closing && entries_.size() < kMaxPending) {
        read = reading_ = true;
        ++starting_reads_;
      }
      // A drain does not wait for the client's next message: a read that was started ends with the
      // stream. One that another thread is about to start must come before Finish, after which gRPC
      // may free the call.
      if (closing && !writing_ && entries_.empty() && starting_reads_ == 0) {
        finish = finished_ = true;
        if (cancelled_) {
          end = grpc::Status(grpc::StatusCode::CANCELLED, "cancelled");
        } else if (!half_closed_) {
          end = ToGrpcStatus(DrainingError());
        }
      }
    }
    if (write) StartWrite(&write_);
    if (read) StartRead(&read_);
    if (finish) {
      record_.Done(end);
      Finish(end);
    }
    if (!read) return;
    started_read = true;
  }
}

void StepStream::OnDone() {
  uint64_t handle = 0;
  {
    MutexLock lock(mutex_);
    handle = drain_handle_;
  }
  context_.drain.Unsubscribe(handle);
  self_.reset();  // the last use of this object here
}

}  // namespace latchd
