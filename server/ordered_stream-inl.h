#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "server/grpc_status.h"
#include "server/ordered_stream.h"

namespace latchd {

template <typename Policy>
OrderedStream<Policy>* OrderedStream<Policy>::Start(ServiceContext& context,
                                                    grpc::CallbackServerContext* rpc) {
  std::shared_ptr<OrderedStream> stream(new OrderedStream(context, rpc));
  stream->self_ = stream;
  const uint64_t handle = context.drain.Subscribe([weak = std::weak_ptr<OrderedStream>(stream)] {
    if (auto live = weak.lock()) live->Drain();
  });
  {
    MutexLock lock(stream->mutex_);
    stream->drain_handle_ = handle;
  }
  stream->Pump();
  return stream.get();
}

template <typename Policy>
OrderedStream<Policy>::OrderedStream(ServiceContext& context, grpc::CallbackServerContext* rpc)
    : context_(context),
      record_(context, Policy::kMethod, rpc->peer()),
      deadline_(ToAbslDeadline(rpc->deadline())) {}

template <typename Policy>
void OrderedStream<Policy>::OnReadDone(bool ok) {
  if (ok) {
    // To the heap, where its bytes stay put: the work holds views of them. A move copies no bytes.
    Accept(std::make_shared<const Request>(std::move(read_)));
    read_.Clear();
  }
  {
    MutexLock lock(mutex_);
    reading_ = false;
    if (!ok) half_closed_ = true;
  }
  Pump();
}

template <typename Policy>
void OrderedStream<Policy>::Accept(std::shared_ptr<const Request> message) {
  Entry entry;
  entry.answer.set_session_id(message->session_id());
  entry.answer.set_tag(message->tag());
  entry.bytes = message->ByteSizeLong();
  const uint64_t session = message->session_id();
  auto checked = Policy::Check(context_, std::move(message), deadline_);
  if (checked.ok()) {
    entry.session = session;
    entry.work = *std::move(checked);
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
    pending_bytes_ += entry.bytes;
    entries_.push_back(std::move(entry));
  }
  if (submit) Submit(sequence);
}

// REQUIRES: the entry's phase was just made kSubmitted, so it stays until its answer.
template <typename Policy>
void OrderedStream<Policy>::Submit(uint64_t sequence) {
  Work work;
  std::shared_ptr<CancelLink> link;
  {
    MutexLock lock(mutex_);
    work = std::move(At(sequence).work);
    link = At(sequence).link;
  }
  Policy::Submit(context_, std::move(work), link,
                 [self = this->shared_from_this(), sequence](absl::StatusOr<Response> result) {
                   self->Answer(sequence, std::move(result));
                 });
}

template <typename Policy>
void OrderedStream<Policy>::Answer(uint64_t sequence, absl::StatusOr<Response> result) {
  std::optional<uint64_t> next;
  {
    MutexLock lock(mutex_);
    Entry& entry = At(sequence);
    if (result.ok()) {
      result->set_session_id(entry.answer.session_id());
      result->set_tag(entry.answer.tag());
      entry.answer = *std::move(result);
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

template <typename Policy>
void OrderedStream<Policy>::OnWriteDone(bool ok) {
  {
    MutexLock lock(mutex_);
    writing_ = false;
  }
  if (!ok) CancelAll();  // the client is gone
  Pump();
}

template <typename Policy>
void OrderedStream<Policy>::OnCancel() {
  CancelAll();
  Pump();
}

template <typename Policy>
void OrderedStream<Policy>::CancelAll() {
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

template <typename Policy>
void OrderedStream<Policy>::Drain() {
  {
    MutexLock lock(mutex_);
    draining_ = true;
  }
  Pump();
}

template <typename Policy>
void OrderedStream<Policy>::Pump() {
  const auto self = this->shared_from_this();
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
      const bool room = entries_.size() < kMaxPending && pending_bytes_ < Policy::kMaxPendingBytes;
      if (!reading_ && !closing && room) {
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
    if (write) this->StartWrite(&write_);
    if (read) this->StartRead(&read_);
    if (finish) {
      record_.Done(end);
      this->Finish(end);
    }
    if (!read) return;
    started_read = true;
  }
}

template <typename Policy>
void OrderedStream<Policy>::OnDone() {
  uint64_t handle = 0;
  {
    MutexLock lock(mutex_);
    handle = drain_handle_;
  }
  context_.drain.Unsubscribe(handle);
  self_.reset();  // the last use of this object here
}

}  // namespace latchd
