#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <deque>
#include <memory>

#include "latchd/v1/decode.grpc.pb.h"
#include "runtime/mutex.h"
#include "server/service_context.h"

namespace latchd {

// One Step stream. Reads ahead at most kMaxPending messages, runs those of different sessions at
// once and those of one session one after the other, and answers in the order of the messages. A
// message that is refused gets a StepError; the stream goes on.
//
// Engine callbacks come on the step-loop thread: they fill an answer and start at most one write,
// never wait. The object lives until gRPC is done with it (OnDone) and the last engine callback has
// returned (shared_ptr).
class StepStream final : public grpc::ServerBidiReactor<v1::StepRequest, v1::StepResponse>,
                         public std::enable_shared_from_this<StepStream> {
 public:
  static constexpr size_t kMaxPending = 64;

  // The reactor to hand to gRPC.
  static StepStream* Start(ServiceContext& context, grpc::CallbackServerContext* rpc);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  enum class Phase : uint8_t {
    kWaiting,    // for an earlier message of the same session
    kSubmitted,  // to the engine
    kDone,       // answered, to be written in its turn
  };
  struct Entry {
    Phase phase = Phase::kWaiting;
    StepRequest request;   // moved out when submitted
    uint64_t session = 0;  // 0: refused by the check, orders nothing
    v1::StepResponse answer;
    std::shared_ptr<CancelLink> link = std::make_shared<CancelLink>();
    WorkTracker::Token pending;
  };

  StepStream(ServiceContext& context, grpc::CallbackServerContext* rpc);
  void Accept(const v1::StepRequest& message);
  void Submit(uint64_t sequence);
  void Answer(uint64_t sequence, const absl::StatusOr<StepResult>& result);
  void Drain();
  void CancelAll();
  // Starts whatever may start now: a write, a read, or the end. Call it without the lock, after
  // every change.
  void Pump();
  Entry& At(uint64_t sequence) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return entries_[sequence - first_];
  }
  void PopFront() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    entries_.pop_front();
    ++first_;
  }

  ServiceContext& context_;
  RpcRecord record_;
  const absl::Time deadline_;
  std::shared_ptr<StepStream> self_;  // until OnDone
  Mutex mutex_;                       // never held while calling gRPC or the engine
  uint64_t drain_handle_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<Entry> entries_ ABSL_GUARDED_BY(mutex_);
  uint64_t first_ ABSL_GUARDED_BY(mutex_) = 0;  // sequence number of entries_.front()
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  int starting_reads_ ABSL_GUARDED_BY(mutex_) = 0;  // decided but not yet handed to gRPC
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool half_closed_ ABSL_GUARDED_BY(mutex_) = false;  // the client sends no more
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;

  v1::StepRequest read_;    // owned by gRPC while reading_
  v1::StepResponse write_;  // owned by gRPC while writing_
};

}  // namespace latchd
