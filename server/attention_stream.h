#pragma once

#include <functional>
#include <memory>

#include "latchd/v1/attention.grpc.pb.h"
#include "runtime/attention/attention_engine.h"
#include "server/ordered_stream.h"

namespace latchd {

// A checked call with what its views point into.
struct AttentionWork {
  std::shared_ptr<const v1::AttentionRequest> message;
  std::shared_ptr<const AttentionConfig> config;
  AttentionCall call;
};

// What a message of AttentionService.Step means. See OrderedStream. A cancel leaves a running step
// to finish, which takes microseconds; waiting ones never run.
struct AttentionStepPolicy {
  using Request = v1::AttentionRequest;
  using Response = v1::AttentionResponse;
  using Work = AttentionWork;
  static constexpr const char* kMethod = "Attention.Step";
  static constexpr size_t kMaxPendingBytes = 64 << 20;

  // REQUIRES: context.attention.
  static absl::StatusOr<Work> Check(ServiceContext& context, std::shared_ptr<const Request> message,
                                    absl::Time deadline);
  static void Submit(ServiceContext& context, Work work, const std::shared_ptr<CancelLink>& link,
                     std::function<void(absl::StatusOr<Response>)> done);
};

using AttentionStream = OrderedStream<AttentionStepPolicy>;
extern template class OrderedStream<AttentionStepPolicy>;

}  // namespace latchd
