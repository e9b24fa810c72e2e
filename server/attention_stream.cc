#include "server/attention_stream.h"

#include <utility>

#include "server/attention_check.h"
#include "server/attention_convert.h"
#include "server/ordered_stream-inl.h"
#include "server/request_check.h"

namespace latchd {

absl::StatusOr<AttentionWork> AttentionStepPolicy::Check(ServiceContext& context,
                                                         std::shared_ptr<const Request> message,
                                                         absl::Time deadline) {
  absl::Status status = CheckSessionId(message->session_id());
  if (!status.ok()) return status;
  auto config = context.attention->AttentionConfigOf(message->session_id());
  if (!config.ok()) return config.status();
  auto call =
      CheckAttentionCall(*message, **config, AttentionCallKind::kStep, context.max_message_bytes);
  if (!call.ok()) return call.status();
  call->deadline = deadline;
  return AttentionWork{std::move(message), *std::move(config), *std::move(call)};
}

void AttentionStepPolicy::Submit(ServiceContext& context, Work work,
                                 const std::shared_ptr<CancelLink>&,
                                 std::function<void(absl::StatusOr<Response>)> done) {
  context.attention->AttentionStep(
      std::move(work.call), [message = std::move(work.message), config = std::move(work.config),
                             done = std::move(done)](absl::StatusOr<AttentionResult> result) {
        if (!result.ok()) return done(result.status());
        Response answer;
        FillAttentionResult(*std::move(result), *config, 1, &answer);
        done(std::move(answer));
      });
}

template class OrderedStream<AttentionStepPolicy>;

}  // namespace latchd
