#include "server/step_stream.h"

#include <utility>

#include "server/ordered_stream-inl.h"
#include "server/proto_convert.h"
#include "server/request_check.h"

namespace latchd {

absl::StatusOr<StepRequest> DecodeStepPolicy::Check(ServiceContext& context,
                                                    const std::shared_ptr<const Request>& message,
                                                    absl::Time deadline) {
  auto checked = CheckStep(*message, context.engine.model().vocab);
  if (checked.ok()) checked->deadline = deadline;
  return checked;
}

void DecodeStepPolicy::Submit(ServiceContext& context, Work work,
                              const std::shared_ptr<CancelLink>& link,
                              std::function<void(absl::StatusOr<Response>)> done) {
  const RequestId id = context.engine.Step(
      work, [&context, done = std::move(done)](const absl::StatusOr<StepResult>& result) {
        if (!result.ok()) return done(result.status());
        Response answer;
        FillStep(*result, context.engine.tokenizer(), &answer);
        done(std::move(answer));
      });
  link->Submitted(context.engine, id);
}

template class OrderedStream<DecodeStepPolicy>;

}  // namespace latchd
