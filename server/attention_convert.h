#pragma once

#include <cstdint>
#include <string>

#include "latchd/v1/attention.pb.h"
#include "runtime/attention/attention_engine.h"

// AttentionEngine's structs to messages.

namespace latchd {

void FillAttentionSession(const AttentionSessionInfo& info, v1::AttentionSession* out);

// Moves the tensors out of `result`; none is copied. `q_sequence`: the call's S. Sets the violation
// too: the rows without one are good.
void FillAttentionResult(AttentionResult&& result, const AttentionConfig& config,
                         int64_t q_sequence, v1::AttentionResponse* out);

void FillCapabilities(const EngineStatus& status, int64_t max_message_bytes,
                      v1::GetCapabilitiesResponse* out);

}  // namespace latchd
