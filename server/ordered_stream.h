#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "runtime/mutex.h"
#include "server/service_context.h"

namespace latchd {

// One bidirectional Step stream, of either service. Reads ahead a bounded number of messages and
// bytes, runs those of different sessions at once and those of one session one after the other, and
// answers in the order of the messages. A message that is refused gets a StepError; the stream goes
// on.
//
// Engine callbacks come on the step-loop thread: they hand over an answer and start at most one
// write, never wait. The object lives until gRPC is done with it (OnDone) and the last engine
// callback has returned (shared_ptr).
//
// Policy says what a message means:
//   using Request, Response;  // with session_id, tag and error
//   using Work;               // a checked request: movable, keeps what it points to alive
//   static constexpr const char* kMethod;       // label of the RPC metrics
//   static constexpr size_t kMaxPendingBytes;   // of unanswered requests; reading stops above it
//   static absl::StatusOr<Work> Check(ServiceContext&, std::shared_ptr<const Request>,
//                                     absl::Time deadline);
//   // `done` exactly once, from any thread. May tell the link how to cancel.
//   static void Submit(ServiceContext&, Work, const std::shared_ptr<CancelLink>&,
//                      std::function<void(absl::StatusOr<Response>)> done);
// The members are defined in ordered_stream-inl.h, for the .cc file that instantiates them.
template <typename Policy>
class OrderedStream final
    : public grpc::ServerBidiReactor<typename Policy::Request, typename Policy::Response>,
      public std::enable_shared_from_this<OrderedStream<Policy>> {
 public:
  using Request = typename Policy::Request;
  using Response = typename Policy::Response;
  using Work = typename Policy::Work;
  static constexpr size_t kMaxPending = 64;

  // The reactor to hand to gRPC.
  static OrderedStream* Start(ServiceContext& context, grpc::CallbackServerContext* rpc);

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
    Work work;             // moved out when submitted
    uint64_t session = 0;  // 0: refused by the check, orders nothing
    size_t bytes = 0;      // of the request
    Response answer;       // session_id and tag from the start
    std::shared_ptr<CancelLink> link = std::make_shared<CancelLink>();
    WorkTracker::Token pending;
  };

  OrderedStream(ServiceContext& context, grpc::CallbackServerContext* rpc);
  void Accept(std::shared_ptr<const Request> message);
  void Submit(uint64_t sequence);
  void Answer(uint64_t sequence, absl::StatusOr<Response> result);
  void Drain();
  void CancelAll();
  // Starts whatever may start now: a write, a read, or the end. Call it without the lock, after
  // every change.
  void Pump();
  Entry& At(uint64_t sequence) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return entries_[sequence - first_];
  }
  void PopFront() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    pending_bytes_ -= entries_.front().bytes;
    entries_.pop_front();
    ++first_;
  }

  ServiceContext& context_;
  RpcRecord record_;
  const absl::Time deadline_;
  std::shared_ptr<OrderedStream> self_;  // until OnDone
  Mutex mutex_;                          // never held while calling gRPC or the engine
  uint64_t drain_handle_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<Entry> entries_ ABSL_GUARDED_BY(mutex_);
  uint64_t first_ ABSL_GUARDED_BY(mutex_) = 0;        // sequence number of entries_.front()
  size_t pending_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of all entries
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  int starting_reads_ ABSL_GUARDED_BY(mutex_) = 0;  // decided but not yet handed to gRPC
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool half_closed_ ABSL_GUARDED_BY(mutex_) = false;  // the client sends no more
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;

  Request read_;    // owned by gRPC while reading_
  Response write_;  // owned by gRPC while writing_
};

}  // namespace latchd
