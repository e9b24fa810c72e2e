#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/device/cpu_device.h"
#include "runtime/sched/step_runner.h"
#include "runtime/tokenizer/tokenizer.h"
#include "tests/support/faulty_device.h"
#include "tests/support/model_files.h"
#include "tests/support/status_matchers.h"

namespace latchd::testing {

struct PuppetOptions {
  uint64_t seed = 1;  // of the weights
  int32_t max_rows = 4;
  int32_t prefill_chunk = 8;
  int32_t sessions = 8;
  int64_t max_capacity = 128;
  int32_t pool_pages = 16;
  const Tokenizer* tokenizer = nullptr;
};

// A tiny random model on the CPU up to its step runner, captured. `device` breaks on request.
class TinyRunner {
 public:
  explicit TinyRunner(const PuppetOptions& options)
      : config(TinyConfig("Qwen3ForCausalLM")), model(RandomModel(config, options.seed)) {
    weights =
        Take(TransformerWeights::Load(*model, device, DType::kF32, options.max_capacity, nullptr));
    kv = Take(KvCache::Create({.layers = static_cast<int32_t>(config.layers),
                               .kv_heads = static_cast<int32_t>(config.kv_heads),
                               .head_dim = static_cast<int32_t>(config.head_dim),
                               .dtype = DType::kF32,
                               .slots = options.sessions + 1,
                               .pool_pages = options.pool_pages + 1,
                               .max_capacity_tokens = options.max_capacity},
                              device));
    runner =
        Take(StepRunner::Create(*weights, *kv, device, options.max_rows, options.prefill_chunk));
    EXPECT_THAT(runner->CaptureAll(nullptr), IsOk());
  }

  ModelConfig config;
  FaultyDevice device{CreateCpuDevice(2)};
  // In this order: each uses those above it until its end.
  std::unique_ptr<ModelSource> model;
  std::unique_ptr<TransformerWeights> weights;
  std::unique_ptr<KvCache> kv;
  std::unique_ptr<StepRunner> runner;

 private:
  template <typename T>
  static T Take(absl::StatusOr<T> made) {
    EXPECT_THAT(made, IsOk());
    return *std::move(made);
  }
};

}  // namespace latchd::testing
