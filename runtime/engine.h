#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/api/invariants.h"
#include "runtime/model/model_config.h"
#include "runtime/tokenizer/tokenizer.h"

// START HERE. The only class server/ sees. An Engine owns the device, the model, the KV memory of
// every session and the step loop: one thread, the only caller of the device and the only owner of
// session state.

namespace latchd {

class AttentionEngine;  // attention/attention_engine.h

class AttentionEngine;
class Metrics;

using SessionId = uint64_t;  // never reused, not even across restarts; 0 is no session
using RequestId = uint64_t;  // of a queued Prefill, Step or Generate; for Cancel

struct EngineOptions {
  std::string model_path;
  std::string device = "auto";  // see CreateDevice
  std::string dtype = "auto";   // auto | f32 | f16 | bf16
  int threads = 0;              // CPU backend; 0 = all cores
  int64_t max_sessions = 64;    // slots
  int64_t max_rows = 8;         // largest bucket captured
  int64_t kv_tokens =
      0;  // KV pool, in tokens over all sessions; 0 = chosen from the memory that is free
  int64_t max_capacity = 0;  // longest session in tokens; 0 = the model's context
  int64_t prefill_chunk =
      0;                     // prompt tokens processed between two steps; 0 = chosen for the device
  int64_t max_queue = 1024;  // requests waiting for the step loop
  int64_t attention_memory = int64_t{1} << 30;  // bytes for AttentionService's caches; 0 = off
  absl::Duration default_ttl = absl::Minutes(10);
  bool fault_injection = false;
};

struct SamplingOptions {
  float temperature = 0.0f;         // 0 = greedy, or [0.001, 100]
  int32_t top_k = 0;                // 0 = off
  float top_p = 1.0f;               // (0, 1]
  float min_p = 0.0f;               // [0, 1)
  float repetition_penalty = 1.0f;  // [0.01, 100]
  float presence_penalty = 0.0f;    // [-2, 2]
  float frequency_penalty = 0.0f;   // [-2, 2]
  uint64_t seed = 0;
  std::vector<std::pair<int32_t, float>> logit_bias;  // at most kMaxLogitBias
};

// The one judge of sampling options. INVALID_ARGUMENT naming the field, what was expected and what
// came.
absl::Status CheckSampling(const SamplingOptions& options, int64_t vocab);

struct SessionOptions {
  int64_t capacity_tokens = 0;  // 0 = max_capacity
  SamplingOptions sampling;
  absl::Duration ttl =
      absl::ZeroDuration();  // 0 = the engine's default; idle time after which it is closed
  std::string owner;         // client-chosen label
};

enum class SessionState : uint8_t { kIdle, kPrefilling, kStepping, kGenerating, kPoisoned };

struct SessionInfo {
  SessionId id = 0;
  SessionState state = SessionState::kIdle;
  int64_t length_tokens = 0;  // valid KV length
  int64_t capacity_tokens = 0;
  std::optional<int32_t> next_token;  // sampled, not yet appended
  Latch latch = {};                   // mask 0 when healthy
  int64_t steps = 0;                  // steps applied
  SamplingOptions sampling;
  absl::Duration ttl;
  absl::Time created, last_used;
  std::string owner;
};

struct TokenLogprob {
  int32_t token = -1;
  float logprob = 0.0f;
};

// A latched device error, ready for a client.
struct Violation {
  Latch latch;
  std::string text;  // e.g. "PRESENT_CAPACITY: total 9 exceeds capacity 8 (row 0, step 3)"
};
std::string DescribeLatch(const Latch& latch);

struct Timings {
  absl::Duration queued;  // from submission until the step loop took it
  absl::Duration device;  // from launch until the result was read
};

// What one sampled position yields. `token` is the model's choice for the position after
// `length_tokens`; it is not in the KV cache until a later Step, Prefill(append_next_token) or
// Generate appends it.
struct Sampled {
  int32_t token = -1;
  float logprob = 0.0f;           // natural log, before temperature and filters
  std::vector<TokenLogprob> top;  // on request, descending
  std::vector<float> logits;  // [vocab], on request: as sampling saw them, after bias and penalties
};

struct PrefillRequest {
  SessionId session = 0;
  std::vector<int32_t> tokens;
  bool append_next_token =
      false;  // append the session's next token before `tokens`; otherwise it is dropped
  int32_t top_logprobs = 0;  // 0..20
  bool want_logits = false;  // logits of the last position
  absl::Time deadline = absl::InfiniteFuture();
};
struct PrefillResult {
  int64_t length_tokens = 0;
  std::optional<Violation> violation;
  Sampled next;
  Timings timings;
};

struct StepRequest {
  SessionId session = 0;
  std::optional<int32_t> forced_token;  // append this instead of the session's next token
  int32_t top_logprobs = 0;
  bool want_logits = false;
  absl::Time deadline = absl::InfiniteFuture();
};
struct StepResult {
  int64_t length_tokens = 0;  // after the step; unchanged by a violation
  int32_t appended_token = -1;
  std::optional<Violation> violation;
  Sampled next;
  Timings timings;
};

enum class FinishReason : uint8_t {
  kLength,
  kStopToken,
  kStopString,
  kCapacity,
  kCancelled,
  kDeadline,
  kViolation,
  kError
};

struct GenerateRequest {
  SessionId session = 0;
  std::vector<int32_t> prompt;     // may be empty: go on from the session's next token
  bool append_next_token = false;  // as in PrefillRequest
  int64_t max_tokens = 128;
  std::optional<SamplingOptions> sampling;  // replaces the session's for this call and after it
  std::vector<int32_t> stop_tokens;         // besides the model's EOS tokens
  std::vector<std::string> stop_strings;
  bool ignore_eos = false;
  int32_t top_logprobs = 0;
  absl::Time deadline = absl::InfiniteFuture();
};
struct GeneratedToken {
  Sampled sampled;
  std::string text;  // certain text so far not sent; held back while it may begin a stop string
  int64_t length_tokens = 0;
  Timings timings;
};
struct GenerateSummary {
  FinishReason reason = FinishReason::kLength;
  std::string text;  // text left to send
  std::optional<Violation> violation;
  absl::Status error;  // for kError
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0;
  absl::Duration prefill_time, decode_time;
  std::string matched_stop;  // for kStopString
};

// Sets things wrong on purpose, so that tests see each invariant reported. Only with
// EngineOptions::fault_injection.
struct FaultRequest {
  SessionId session = 0;
  std::optional<int32_t> seqlens_k;  // used by the next step instead of the true length
  std::optional<int64_t> position;   // explicit rotary position of the next step
  std::optional<int32_t> token;  // appended by the next step without the server's own range check
  std::optional<int32_t>
      page;  // written over the page-table entry of the next token, until Clear/Truncate/Reset
  std::optional<float>
      norm_weight;  // written over element 0 of the final norm; restored by restore_weights
  bool restore_weights = false;
};

struct GraphInfo {
  std::string signature;
  size_t nodes = 0;
  size_t bytes = 0;
  int64_t replays = 0;
};
struct EngineStatus {
  std::string device_name, backend, dtype, model_name, model_path, fingerprint;
  std::string device_note;  // why the CPU is used although "auto" was asked, or empty
  int64_t sessions = 0, max_sessions = 0;
  int64_t kv_tokens_total = 0, kv_tokens_free = 0;
  int64_t max_capacity = 0;
  size_t weight_bytes = 0, kv_bytes = 0, graph_bytes = 0, other_bytes = 0;
  std::vector<GraphInfo> graphs;
  int64_t graph_hits = 0, graph_misses = 0, graph_captures = 0;
  absl::Time started, last_good_step;
  absl::Status fault;  // sticky device fault
  bool draining = false;
};

// Progress of loading, warm-up and capture: stage name, done and total in units of the stage.
using Progress = std::function<void(const std::string& stage, int64_t done, int64_t total)>;

// Thread-safe. Callbacks run on the step loop's thread and must not block or call the engine back
// synchronously (submitting requests is fine). Every submitted request gets exactly one `done`.
// Errors are those of DESIGN section 9: NOT_FOUND (session), INVALID_ARGUMENT (names the field),
// FAILED_PRECONDITION (no next token), RESOURCE_EXHAUSTED, ABORTED (another request is running on
// the session), DEADLINE_EXCEEDED, CANCELLED, UNAVAILABLE (draining), INTERNAL.
class Engine {
 public:
  // Loads the model, warms and captures the decode step. INVALID_ARGUMENT / NOT_FOUND /
  // RESOURCE_EXHAUSTED / UNAVAILABLE.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options,
                                                        Metrics& metrics, const Progress& progress);
  virtual ~Engine() = default;

  virtual const ModelConfig& model() const = 0;
  virtual const Tokenizer* tokenizer() const = 0;  // null: the model has none
  virtual EngineStatus status() const = 0;
  virtual AttentionEngine* attention() { return nullptr; }  // null: AttentionService is off

  // Session calls wait for the step loop's next turn.
  virtual absl::StatusOr<SessionInfo> OpenSession(const SessionOptions& options) = 0;
  virtual absl::StatusOr<SessionInfo> GetSession(SessionId id) = 0;
  virtual std::vector<SessionInfo> ListSessions() = 0;
  virtual absl::StatusOr<SessionInfo> ClearLatch(SessionId id) = 0;
  // Shortens to `length_tokens` (0..length), drops the next token and clears the latch.
  virtual absl::StatusOr<SessionInfo> Truncate(SessionId id, int64_t length_tokens) = 0;
  virtual absl::StatusOr<SessionInfo> Reset(SessionId id) = 0;
  // Ends running work of the session (CANCELLED) and frees it. Idempotent for ids that were once
  // open.
  virtual absl::Status CloseSession(SessionId id) = 0;

  virtual RequestId Prefill(PrefillRequest request,
                            std::function<void(absl::StatusOr<PrefillResult>)> done) = 0;
  virtual RequestId Step(StepRequest request,
                         std::function<void(absl::StatusOr<StepResult>)> done) = 0;
  // `on_token` for each token, then `done` once. A request refused outright ends with reason
  // kError.
  virtual RequestId Generate(GenerateRequest request,
                             std::function<void(const GeneratedToken&)> on_token,
                             std::function<void(const GenerateSummary&)> done) = 0;
  // Idempotent; unknown and finished ids are ignored.
  virtual void Cancel(RequestId id) = 0;

  virtual absl::Status InjectFault(const FaultRequest& request) = 0;
  // SHA-256 of the session's valid KV rows of all layers, for tests (fault_injection only).
  virtual absl::StatusOr<std::string> KvDigest(SessionId id) = 0;

  // Refuses new work, lets running work finish until `deadline`, then cancels the rest. Returns
  // when idle.
  virtual void Drain(absl::Time deadline) = 0;
};

}  // namespace latchd
