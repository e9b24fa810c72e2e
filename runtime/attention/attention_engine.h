#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/api/dtype.h"
#include "runtime/engine.h"

namespace latchd {

// GroupQueryAttention with the KV cache on the server: what AttentionService serves. A session is a
// fixed batch of sequences with `layers` caches; query, key and value come with each call.

enum class AttentionBackend : uint8_t { kAuto, kFlash, kReference };

// The operator's attributes and the session's shape: fixed for its life.
struct AttentionConfig {
  DType dtype = DType::kF32;  // of query, key, value, caches and output
  int64_t batch = 1;
  int64_t layers = 1;
  int64_t capacity_tokens = 0;
  int64_t num_heads = 0;
  int64_t kv_num_heads = 0;  // divides num_heads
  int64_t head_size = 0;
  float scale = 0.0f;  // 0: 1 / sqrt(head_size)
  int64_t local_window_size = -1;
  float softcap = 0.0f;
  bool do_rotary = false;
  bool rotary_interleaved = false;
  bool smooth_softmax = false;
  bool packed_qkv = false;
  bool explicit_positions = false;
  // With do_rotary: [rotary_rows, rotary_dim / 2], widened to f32.
  std::vector<float> cos_cache, sin_cache;
  int64_t rotary_dim = 0;
  int64_t rotary_rows = 0;
  std::vector<float> head_sink;  // [num_heads] or empty
  AttentionBackend backend = AttentionBackend::kAuto;
  bool disable_prep_fusion = false;
  absl::Duration ttl = absl::ZeroDuration();  // 0: the daemon's default
  std::string owner;
};

struct AttentionSessionInfo {
  SessionId id = 0;
  std::shared_ptr<const AttentionConfig> config;
  std::string signature;  // of the captured step
  size_t kv_bytes = 0;
  int64_t steps = 0;
  bool busy = false;
  std::optional<Violation> violation;  // poisoned
  std::vector<int64_t> lengths;        // [layers, batch], after the last good call
  absl::Duration idle;
};

// One call on one layer. Views must stay valid until `done`; element type is the session's dtype.
struct AttentionCall {
  SessionId session = 0;
  int64_t layer = 0;
  int64_t q_sequence = 1;   // S
  int64_t kv_sequence = 1;  // Skv: S, or 0 to attend without appending
  std::string_view query;   // [B, S, H], H as packed_qkv says
  std::string_view key;     // [B, Skv, kv_num_heads * head_size]; empty when packed
  std::string_view value;
  std::vector<int32_t> seqlens_k;     // [B]
  std::vector<int64_t> position_ids;  // [B, S] with explicit_positions, otherwise empty
  // Prefill only: [B, kv_num_heads, past_tokens, head_size], written over the layer's cache first.
  int64_t past_tokens = 0;
  std::string_view past_key, past_value;
  // Added to the scores: [bias_batch, bias_heads, S, bias_keys] f32; empty: none.
  std::vector<float> bias;
  int64_t bias_batch = 1;  // 1 or B
  int64_t bias_heads = 1;  // 1 or num_heads
  int64_t bias_keys = 0;   // at least the longest total
  bool want_present = false;
  absl::Time deadline = absl::InfiniteFuture();
};

struct AttentionResult {
  std::string output;  // [B, S, num_heads * head_size]; rows that violated are zero
  std::string present_key, present_value;  // [B, kv_num_heads, capacity, head_size] on request
  std::string metadata_variant, prep_variant, attention_variant;
  bool captured = false;
  std::optional<Violation> violation;  // the session is poisoned; without one every row is applied
  Timings timings;
};

// Thread-safe. Errors as in Engine. Calls of one session run in the order they were submitted.
class AttentionEngine {
 public:
  virtual ~AttentionEngine() = default;

  virtual absl::StatusOr<AttentionSessionInfo> OpenAttention(AttentionConfig config) = 0;
  virtual absl::StatusOr<AttentionSessionInfo> GetAttention(SessionId id) = 0;
  virtual std::vector<AttentionSessionInfo> ListAttention() = 0;
  virtual absl::StatusOr<AttentionSessionInfo> ForkAttention(SessionId id) = 0;
  virtual absl::StatusOr<AttentionSessionInfo> TruncateAttention(SessionId id, int64_t length) = 0;
  virtual absl::StatusOr<AttentionSessionInfo> ClearAttentionLatch(SessionId id) = 0;
  virtual absl::Status CloseAttention(SessionId id) = 0;

  // The session's shape without waiting for the step loop, for checking a call. NOT_FOUND.
  virtual absl::StatusOr<std::shared_ptr<const AttentionConfig>> AttentionConfigOf(
      SessionId id) const = 0;

  // Captured: one query token for each row, lengths and positions judged by the device.
  virtual void AttentionStep(AttentionCall call,
                             std::function<void(absl::StatusOr<AttentionResult>)> done) = 0;
  // Eager: any S; bad lengths or positions are INVALID_ARGUMENT and poison nothing.
  virtual void AttentionPrefill(AttentionCall call,
                                std::function<void(absl::StatusOr<AttentionResult>)> done) = 0;

  // The caches as a safetensors file, and back. Import checks everything before it changes
  // anything.
  virtual absl::StatusOr<std::string> ExportAttention(SessionId id) = 0;
  virtual absl::StatusOr<AttentionSessionInfo> ImportAttention(SessionId id,
                                                               std::string_view file) = 0;
};

}  // namespace latchd
