#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/attention/attention_engine.h"
#include "runtime/device/device.h"
#include "runtime/graph/graph_cache.h"
#include "runtime/program/step_program.h"

namespace latchd {

// The caches and programs of one attention session. Layer `l` of batch row `b` is slot
// l * batch + b of the session's own tables, so the layer is data and one captured graph serves all
// of them. Each slot is one page as long as the capacity: a contiguous BNSH cache. The slots share
// one latch. Not thread-safe: used by the step loop alone.
class AttentionSession {
 public:
  // Allocates, warms and captures the one-token step. RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<AttentionSession>> Create(
      std::shared_ptr<const AttentionConfig> config, Device& device);
  // Device bytes that a session of this shape holds, buffers of prefills not counted.
  static size_t DeviceBytes(const AttentionConfig& config);

  // REQUIRES of both: the call has the session's shape (server/attention_check.h).
  absl::StatusOr<AttentionResult> Step(const AttentionCall& call);
  absl::StatusOr<AttentionResult> Prefill(const AttentionCall& call);

  absl::Status ClearLatch();
  absl::Status Truncate(int64_t length);
  absl::Status CopyFrom(const AttentionSession& other);

  // One layer's keys and values, each [batch, kv_num_heads, capacity, head_size], zero beyond the
  // valid length of each row.
  absl::Status ReadLayer(int64_t layer, std::string& key, std::string& value) const;
  // REQUIRES: sizes as ReadLayer's.
  absl::Status WriteLayer(int64_t layer, std::string_view key, std::string_view value);

  const AttentionConfig& config() const { return *config_; }
  const std::shared_ptr<const AttentionConfig>& shared_config() const { return config_; }
  const std::optional<Violation>& violation() const { return violation_; }
  const std::vector<int64_t>& lengths() const { return lengths_; }
  void SetLengths(std::vector<int64_t> lengths) { lengths_ = std::move(lengths); }
  int64_t steps() const { return steps_; }
  size_t kv_bytes() const { return key_.bytes() + value_.bytes(); }
  const Signature& signature() const { return signature_; }

 private:
  // Buffers of calls of at most `rows` tokens. The step's never move, because its graph holds their
  // addresses; the prefill's grow.
  struct CallBuffers {
    int64_t rows = 0;
    Buffer host;       // pinned: as `inputs`
    Buffer inputs;     // StepInputsHeader, StepRow[rows], f32 qkv [rows, heads, head_size]
    Buffer meta;       // RowMeta[rows]
    Buffer query;      // f32 [rows, num_heads, head_size]
    Buffer output;     // of dtype [rows, num_heads, head_size]
    Buffer workspace;  // of the attention op
    Buffer bias;
  };

  AttentionSession(std::shared_ptr<const AttentionConfig> config, Device& device)
      : config_(std::move(config)), device_(device), graphs_(device, 1) {}
  absl::Status Allocate();
  absl::Status AllocateTables();
  absl::Status Grow(CallBuffers& buffers, int64_t rows, Phase phase);
  absl::Status Capture();

  KvView View() const;
  SlotTables Tables() const;
  MetadataOp MetadataFor(const CallBuffers& buffers, int64_t rows) const;
  AttentionOp AttentionFor(const CallBuffers& buffers, int64_t first_row, int64_t rows,
                           Phase phase) const;
  StepProgram BuildProgram(const CallBuffers& buffers, int64_t rows) const;
  size_t InputBytes(int64_t rows) const;

  void WriteInputs(const AttentionCall& call, CallBuffers& buffers);
  absl::Status CheckLengthsOnHost(const AttentionCall& call) const;
  absl::Status WritePast(const AttentionCall& call);
  absl::Status RunEager(const AttentionCall& call, CallBuffers& buffers, Phase phase);
  absl::StatusOr<AttentionResult> Finish(const AttentionCall& call, const CallBuffers& buffers);
  absl::Status ZeroSkippedRows(const CallBuffers& buffers, int64_t rows, std::string& output) const;

  const std::shared_ptr<const AttentionConfig> config_;
  Device& device_;
  GraphCache graphs_;
  Signature signature_;
  Buffer key_, value_;                    // [layers, batch, kv_num_heads, capacity, head_size]
  Buffer latch_, capacity_, page_table_;  // the slot tables
  Buffer cos_, sin_, sink_;               // f32
  CallBuffers step_, prefill_;
  std::vector<int64_t> lengths_;  // [layers, batch], after the last good call
  std::optional<Violation> violation_;
  int64_t steps_ = 0;
  int64_t sequence_ = 0;
};

}  // namespace latchd
