#include "client/cli/chat_history.h"

#include <algorithm>

namespace latchd::cli {

ChatDelta PlanChatTurn(const std::vector<int32_t>& wanted, const std::vector<int32_t>& known,
                       int64_t length) {
  // At least one token is left to prefill: without it there would be no logits to go on from.
  const auto limit = static_cast<int64_t>(std::min(wanted.size() - 1, known.size()));
  int64_t common = 0;
  while (common < limit && wanted[common] == known[common]) ++common;
  ChatDelta delta;
  if (common < length) {
    delta.truncate_to = common;
  } else if (common > length) {
    // The pending token is the only one that can be appended without a prefill.
    delta.append_next_token = true;
    common = length + 1;
  }
  delta.tokens.assign(wanted.begin() + common, wanted.end());
  return delta;
}

}  // namespace latchd::cli
