#pragma once

#include <functional>
#include <memory>

#include "latchd/v1/decode.grpc.pb.h"
#include "server/ordered_stream.h"

namespace latchd {

// What a message of DecodeService.Step means. See OrderedStream.
struct DecodeStepPolicy {
  using Request = v1::StepRequest;
  using Response = v1::StepResponse;
  using Work = StepRequest;
  static constexpr const char* kMethod = "Step";
  static constexpr size_t kMaxPendingBytes = 1 << 20;  // far above kMaxPending of these messages

  static absl::StatusOr<Work> Check(ServiceContext& context,
                                    const std::shared_ptr<const Request>& message,
                                    absl::Time deadline);
  static void Submit(ServiceContext& context, Work work, const std::shared_ptr<CancelLink>& link,
                     std::function<void(absl::StatusOr<Response>)> done);
};

using StepStream = OrderedStream<DecodeStepPolicy>;
extern template class OrderedStream<DecodeStepPolicy>;

}  // namespace latchd
