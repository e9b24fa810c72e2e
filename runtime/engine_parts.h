#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/attention/attention_host.h"
#include "runtime/engine.h"
#include "runtime/kv/kv_cache.h"
#include "runtime/model/model_source.h"
#include "runtime/program/transformer_weights.h"
#include "runtime/sched/step_loop.h"
#include "runtime/sched/step_runner.h"

namespace latchd {

// What an engine is made of, in the order of construction: each part may use those above it. Built,
// used and destroyed on the engine's one thread.
struct EngineParts {
  // Opens and checks the model, chooses dtype and KV size, loads weights, warms and captures.
  static absl::StatusOr<std::unique_ptr<EngineParts>> Build(const EngineOptions& options,
                                                            Metrics& metrics,
                                                            const AttentionHost::Post& post,
                                                            const Progress& progress);

  EngineStatus Status() const;
  absl::Status InjectFault(const FaultRequest& request);

  EngineOptions options;
  absl::Time started;
  absl::Duration load_time;
  std::string fingerprint;
  std::unique_ptr<ModelSource> source;
  std::unique_ptr<Tokenizer> tokenizer;  // null: none
  std::unique_ptr<Device> device;
  std::unique_ptr<TransformerWeights> weights;
  std::unique_ptr<KvCache> kv;
  std::unique_ptr<StepRunner> runner;
  std::unique_ptr<StepLoop> loop;
  std::unique_ptr<AttentionHost> attention;  // null: off
  std::optional<float> true_norm_weight;     // while fault injection has changed it
};

}  // namespace latchd
