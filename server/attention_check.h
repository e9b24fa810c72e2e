#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "latchd/v1/attention.pb.h"
#include "runtime/attention/attention_engine.h"

// AttentionService's messages to validated structs: every refusal of GroupQueryAttention (DESIGN
// section 8). As in request_check, errors are INVALID_ARGUMENT, name the field, what was expected
// and what came, and hold no text of a client's.

namespace latchd {

inline constexpr int64_t kMaxAttentionHeads = 1024;
inline constexpr int64_t kMaxAttentionHeadSize = 256;
inline constexpr int64_t kMaxAttentionBatch = 1024;
inline constexpr int64_t kMaxAttentionLayers = 1024;
inline constexpr int64_t kMaxAttentionCapacity = INT32_MAX - 1;
// Of one rope table: a million positions of 128 channels.
inline constexpr int64_t kMaxRopeElements = int64_t{1} << 26;
// Of a message besides its tensors' data.
inline constexpr int64_t kMessageOverheadBytes = 4096;

// `max_message_bytes`: what gRPC was told; a session whose one-token step could not be sent is
// refused.
absl::StatusOr<AttentionConfig> CheckOpenAttention(const v1::OpenAttentionSessionRequest& request,
                                                   int64_t max_message_bytes);

// Fills cos_cache, sin_cache, rotary_dim and rotary_rows: entry [p, i] is that of the angle
// p / scaling * theta^(-2 i / rotary_dim) (Su et al. 2021; linear scaling: Chen et al. 2023),
// computed in double. REQUIRES: rope passed CheckOpenAttention's checks, zeros replaced.
void FillRope(const v1::OpenAttentionSessionRequest::Rope& rope, AttentionConfig& config);

enum class AttentionCallKind {
  // One token, captured. The values of seqlens_k, total_sequence_length and position_ids are not
  // read: the device judges them and latches.
  kStep,
  // Any length. Those values are judged here, so that a bad one poisons nothing.
  kPrefill,
};

// The call's views point into `request`, which must live until the engine is done. `config` is the
// session's. The call's deadline is left to the caller.
absl::StatusOr<AttentionCall> CheckAttentionCall(const v1::AttentionRequest& request,
                                                 const AttentionConfig& config,
                                                 AttentionCallKind kind, int64_t max_message_bytes);

absl::Status CheckTruncateAttention(const v1::TruncateAttentionRequest& request);

// Longest file that Import may need for this session: the caches and a generous safetensors header.
int64_t MaxImportBytes(const AttentionConfig& config);

}  // namespace latchd
