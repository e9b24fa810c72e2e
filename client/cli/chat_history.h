#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace latchd::cli {

// What a session's KV cache holds, against the token ids that the next turn wants there.
struct ChatDelta {
  std::optional<int64_t> truncate_to;  // shorten the session first
  bool append_next_token = false;      // its pending token is wanted next
  std::vector<int32_t> tokens;         // to prefill after that; never empty
};

// `wanted`: the whole rendered conversation, not empty. `known`: tokens given to and generated in
// the session, in order; its first `length` are in the KV cache and known[length], when there, is
// the pending next token. The longest common prefix is kept, so a turn prefills the delta alone;
// where a template changes an earlier turn, or the reply's text tokenises differently from how it
// was generated, the session is cut back to the point of difference. REQUIRES: 0 <= length <=
// known.size().
ChatDelta PlanChatTurn(const std::vector<int32_t>& wanted, const std::vector<int32_t>& known,
                       int64_t length);

}  // namespace latchd::cli
