#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/device/device.h"
#include "runtime/graph/graph_cache.h"
#include "runtime/kv/kv_cache.h"
#include "runtime/program/activations.h"
#include "runtime/program/transformer_builder.h"
#include "runtime/program/transformer_weights.h"

namespace latchd {

// Runs steps on the device: decode steps by replaying the graph of their bucket, prompt chunks
// eagerly. Knows rows and slots, not sessions or requests. Not thread-safe: used by the step loop
// alone.
class StepRunner {
 public:
  static absl::StatusOr<std::unique_ptr<StepRunner>> Create(const TransformerWeights& weights,
                                                            KvCache& kv, Device& device,
                                                            int32_t max_rows,
                                                            int32_t prefill_chunk);

  // Warms and captures every bucket on the scratch slot.
  absl::Status CaptureAll(const std::function<void(int64_t done, int64_t total)>& progress);

  // One decode step. Each row must have a slot of its own. The results are valid until the next
  // call; row i of `rows` has result i. A row's violation is in its result, not in the status.
  absl::StatusOr<const RowResult*> Decode(const std::vector<StepRow>& rows);
  // The same step op by op, without a graph: for tests that compare the two.
  absl::StatusOr<const RowResult*> DecodeEager(const std::vector<StepRow>& rows);

  // One prompt chunk: consecutive tokens of one slot, at most prefill_chunk of them. With `sample`,
  // returns the result of the last row; otherwise null.
  absl::StatusOr<const RowResult*> Prefill(const std::vector<StepRow>& rows, bool sample);

  // Copies the logits of row `row` of the last Decode, or of the last sampled Prefill (row 0).
  absl::Status ReadDecodeLogits(int32_t row, std::vector<float>& out);
  absl::Status ReadPrefillLogits(std::vector<float>& out);

  int32_t max_rows() const { return decode_->max_rows; }
  int32_t prefill_chunk() const { return prefill_->max_rows; }
  const GraphCache& graphs() const { return graphs_; }
  // REQUIRES: `rows` is a bucket.
  const Signature& SignatureFor(int32_t rows) const;
  // The program of a bucket, for printing.
  StepProgram DecodeProgram(int32_t rows) { return builder_.Decode(*decode_, rows); }

 private:
  StepRunner(const TransformerWeights& weights, KvCache& kv, Device& device, int32_t max_rows);

  Signature MakeSignature(int32_t rows) const;
  int32_t WriteDecodeInputs(const std::vector<StepRow>& rows);
  absl::Status AwaitResults(const Activations& buffers, int32_t rows);
  absl::Status ReadLogits(const Activations& buffers, int32_t row, std::vector<float>& out);

  const TransformerWeights& weights_;
  KvCache& kv_;
  Device& device_;
  TransformerBuilder builder_;
  std::vector<int32_t> buckets_;
  std::vector<Signature> signatures_;  // of each bucket
  GraphCache graphs_;
  std::unique_ptr<Activations> decode_;
  std::unique_ptr<Activations> prefill_;
  int64_t sequence_ = 0;
};

}  // namespace latchd
