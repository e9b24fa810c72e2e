#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/model/model_config.h"
#include "runtime/requests.h"
#include "runtime/session_info.h"
#include "runtime/tokenizer/tokenizer.h"

// START HERE. The only class server/ sees. An Engine owns the device, the model, the KV memory of
// every session and the step loop: one thread, the only caller of the device and the only owner of
// session state.

namespace latchd {

class AttentionEngine;  // attention/attention_engine.h
class Metrics;

struct EngineOptions {
  static constexpr int64_t kMaxSessions = 65536;
  static constexpr int64_t kMaxRows = 128;
  static constexpr int64_t kMaxPrefillChunk = 8192;
  static constexpr int64_t kMaxQueue = int64_t{1} << 20;
  static constexpr int64_t kMaxAttentionMemory = int64_t{1} << 50;

  std::string model_path;
  std::string device = "auto";  // see CreateDevice
  std::string dtype = "auto";   // auto | f32 | f16 | bf16
  int threads = 0;              // CPU backend; 0 = all cores
  int64_t max_sessions = 64;    // slots
  int64_t max_rows = 8;         // largest bucket captured
  // KV pool, in tokens over all sessions; 0 = chosen from the memory that is free.
  int64_t kv_tokens = 0;
  int64_t max_capacity = 0;  // longest session in tokens; 0 = the model's context
  // Prompt tokens processed between two steps; 0 = chosen for the device.
  int64_t prefill_chunk = 0;
  int64_t max_queue = 1024;                     // requests waiting for the step loop
  int64_t attention_memory = int64_t{1} << 30;  // bytes for AttentionService's caches; 0 = off
  absl::Duration default_ttl = absl::Minutes(10);
  bool fault_injection = false;
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
  size_t model_file_bytes = 0;
  absl::Duration load_time;  // from the mapped files to weights on the device
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
