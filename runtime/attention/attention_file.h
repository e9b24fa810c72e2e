#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/attention/attention_session.h"

namespace latchd {

// A session's caches as a safetensors file: key.N and value.N of each layer, [batch, kv_num_heads,
// capacity, head_size], zero beyond the valid lengths, and `lengths` I64 [layers, batch].
absl::StatusOr<std::string> WriteAttentionFile(const AttentionSession& session);

// Replaces the caches and lengths. INVALID_ARGUMENT naming the tensor, what was expected and what
// came; the session is then unchanged.
absl::Status ReadAttentionFile(std::string_view file, AttentionSession& session);

}  // namespace latchd
