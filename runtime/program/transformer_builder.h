#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "runtime/device/device.h"
#include "runtime/kv/kv_cache.h"
#include "runtime/program/activations.h"
#include "runtime/program/step_program.h"
#include "runtime/program/transformer_weights.h"

namespace latchd {

// Writes the forward pass of a decoder as op calls. The same list serves a decode step (rows =
// sessions) and a prefill chunk (rows = consecutive prompt tokens of one session); only the phase
// of its ops and the sampled rows differ.
class TransformerBuilder {
 public:
  TransformerBuilder(const TransformerWeights& weights, const KvCache& kv, Device& device)
      : weights_(weights), kv_(kv), device_(device) {}

  // One captured step of `rows` rows; every row is sampled. Its first call uploads the step inputs.
  StepProgram Decode(Activations& buffers, int32_t rows) const;

  // One prompt chunk of `rows` tokens. With `sample`, the last row is sampled into results[0].
  StepProgram Prefill(Activations& buffers, int32_t rows, bool sample) const;

  // Allocates the workspaces that programs over `buffers` of up to its max_rows rows need. Call
  // once, before building.
  absl::Status AllocateWorkspaces(Activations& buffers, Phase phase) const;

 private:
  StepProgram Body(Activations& buffers, int32_t rows, Phase phase) const;
  void Head(StepProgram& program, Activations& buffers, int32_t first_row, int32_t rows) const;
  void Layer(StepProgram& program, Activations& buffers, int32_t rows, Phase phase,
             int32_t layer) const;

  const TransformerWeights& weights_;
  const KvCache& kv_;
  Device& device_;
};

}  // namespace latchd
