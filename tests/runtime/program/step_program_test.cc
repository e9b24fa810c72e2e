#include "runtime/program/step_program.h"

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "runtime/device/cpu_device.h"
#include "runtime/program/transformer_builder.h"
#include "tests/support/faulty_device.h"
#include "tests/support/model_files.h"
#include "tests/support/status_matchers.h"

namespace latchd {
namespace {

using testing::Fails;
using testing::FaultyDevice;
using testing::IsOk;
using testing::TinyConfig;

// A tiny model's parts, up to its programs.
struct Programs {
  FaultyDevice device{CreateCpuDevice(1)};
  std::unique_ptr<TransformerWeights> weights;
  std::unique_ptr<KvCache> kv;
  std::unique_ptr<Activations> decode, prefill;
  std::unique_ptr<TransformerBuilder> builder;

  explicit Programs(const ModelConfig& config, DType dtype = DType::kF16) {
    const std::unique_ptr<ModelSource> source = RandomModel(config, 1);
    weights = Take(TransformerWeights::Load(*source, device, dtype, 128, nullptr));
    kv = Take(KvCache::Create({.layers = static_cast<int32_t>(config.layers),
                               .kv_heads = static_cast<int32_t>(config.kv_heads),
                               .head_dim = static_cast<int32_t>(config.head_dim),
                               .dtype = dtype,
                               .slots = 3,
                               .pool_pages = 5,
                               .max_capacity_tokens = 128},
                              device));
    decode = Take(Activations::Create(config, dtype, 4, 4, device));
    prefill = Take(Activations::Create(config, dtype, 16, 1, device));
    builder = std::make_unique<TransformerBuilder>(*weights, *kv, device);
    EXPECT_THAT(builder->AllocateWorkspaces(*decode, Phase::kDecode), IsOk());
    EXPECT_THAT(builder->AllocateWorkspaces(*prefill, Phase::kPrefill), IsOk());
  }
  template <typename T>
  static T Take(absl::StatusOr<T> made) {
    EXPECT_THAT(made, IsOk());
    return *std::move(made);
  }
};

ModelConfig Config() {
  ModelConfig config = TinyConfig("Qwen3ForCausalLM");
  config.sliding_window = 24;
  return config;
}

// Run with LATCHD_UPDATE_GOLDEN=1 to write the file anew; read the difference before committing it.
TEST(StepProgram, TextIsTheGoldenOne) {
  Programs programs(Config());
  ModelConfig biased = TinyConfig("Qwen2ForCausalLM");
  biased.layers = 1;
  Programs with_bias(biased, DType::kF32);
  const std::string text = "# decode, 4 rows, qk-norm, window 24\n" +
                           ToString(programs.builder->Decode(*programs.decode, 4)) +
                           "# prefill, 16 rows, sampled\n" +
                           ToString(programs.builder->Prefill(*programs.prefill, 16, true)) +
                           "# decode, 1 row, qkv bias, one layer, f32\n" +
                           ToString(with_bias.builder->Decode(*with_bias.decode, 1));
  const std::string path = std::string(LATCHD_GOLDEN_DIR) + "/tiny_step_program.txt";
  if (std::getenv("LATCHD_UPDATE_GOLDEN") != nullptr) testing::WriteFile(path, text);
  EXPECT_EQ(text, testing::ReadFile(path));
}

TEST(StepProgram, TextHasNoAddresses) {
  Programs a(Config()), b(Config());
  EXPECT_EQ(ToString(a.builder->Decode(*a.decode, 2)), ToString(b.builder->Decode(*b.decode, 2)));
  EXPECT_NE(ToString(a.builder->Decode(*a.decode, 2)), ToString(a.builder->Decode(*a.decode, 1)));
}

TEST(StepProgram, APrefillSamplesItsLastRowOnlyWhenAsked) {
  Programs p(Config());
  const StepProgram with = p.builder->Prefill(*p.prefill, 9, true);
  const StepProgram without = p.builder->Prefill(*p.prefill, 9, false);
  ASSERT_EQ(with.calls.size(), without.calls.size() + 2);
  const auto& head = std::get<LinearOp>(with.calls[with.calls.size() - 2].params);
  const auto& sample = std::get<SampleOp>(with.calls.back().params);
  EXPECT_EQ(head.rows, 1);
  EXPECT_EQ(head.x, p.prefill->x.data<float>() + 8 * 64);
  EXPECT_EQ(head.meta, p.prefill->meta.data<RowMeta>() + 8);
  EXPECT_EQ(sample.inputs, p.prefill->device_rows() + 8);
  EXPECT_EQ(sample.results, p.prefill->results.data<RowResult>());
}

TEST(StepProgram, EveryOpFitsItsWorkspaceWhateverTheRows) {
  Programs p(Config());
  for (int32_t rows = 1; rows <= 16; ++rows) {
    StepProgram program = p.builder->Prefill(*p.prefill, rows, true);
    if (rows <= 4) {
      for (const OpCall& call : p.builder->Decode(*p.decode, rows).calls)
        program.calls.push_back(call);
    }
    for (const OpCall& call : program.calls) {
      const size_t needed = p.device.ops().workspace_bytes(call);
      const auto given = std::visit(
          [](const auto& op) -> size_t {
            if constexpr (requires { op.workspace_bytes; }) return op.workspace_bytes;
            return 0;
          },
          call.params);
      EXPECT_LE(needed, given) << ToString(call);
    }
  }
}

TEST(StepProgram, SubmitStopsAtTheFirstFailureAndNamesTheOp) {
  Programs p(Config());
  const StepProgram program = p.builder->Decode(*p.decode, 2);
  const auto ran = [&] { return p.device.calls(FaultyDevice::Kind::kRun); };
  int64_t before = ran();
  ASSERT_THAT(Submit(program, p.device), IsOk());
  EXPECT_EQ(ran() - before, static_cast<int64_t>(program.calls.size()));
  p.device.FailOn(FaultyDevice::Kind::kRun, 4);  // upload, metadata, embed, then layer 0's qkv
  before = ran();
  EXPECT_THAT(Submit(program, p.device),
              Fails(absl::StatusCode::kInternal,
                    "layer 0 qkv: linear decode f16 [128, 64] rows=2 norm store: injected fault"));
  EXPECT_EQ(ran() - before, 4);
}

TEST(MinimumBytes, CountsWhatEachOpMustMove) {
  LinearOp linear = {.x_dtype = DType::kF32,
                     .weight = {nullptr, DType::kF16, 32, 64},
                     .epilogue = Epilogue::kStore,
                     .y_dtype = DType::kF32,
                     .rows = 3};
  const size_t weight = 32 * 64 * 2, x = 3 * 64 * 4, y = 3 * 32 * 4;
  EXPECT_EQ(MinimumBytes({linear}, 0), weight + x + y);
  linear.epilogue = Epilogue::kResidual;
  EXPECT_EQ(MinimumBytes({linear}, 0), weight + x + 2 * y) << "y is read and written";
  linear.epilogue = Epilogue::kSiluMul;
  EXPECT_EQ(MinimumBytes({linear}, 0), weight + x + y / 2) << "y is half as wide";

  AttentionOp attention = {.kv = {.kv_heads = 2, .head_dim = 16, .dtype = DType::kF16},
                           .q_heads = 4,
                           .window = -1,
                           .out_dtype = DType::kF32,
                           .rows = 3,
                           .phase = Phase::kDecode};
  const size_t token = 2 * 2 * 16 * 2, q_and_out = 3 * 4 * 16 * (4 + 4);
  EXPECT_EQ(MinimumBytes({attention}, 100), 3 * 100 * token + q_and_out);
  attention.window = 24;
  EXPECT_EQ(MinimumBytes({attention}, 100), 3 * 24 * token + q_and_out);
  EXPECT_EQ(MinimumBytes({attention}, 10), 3 * 10 * token + q_and_out);
  attention.window = -1;
  attention.phase = Phase::kPrefill;
  EXPECT_EQ(MinimumBytes({attention}, 100), 100 * token + q_and_out) << "rows share one slot's KV";

  EXPECT_EQ(
      MinimumBytes({AttentionPrepOp{.q_heads = 4,
                                    .kv = {.kv_heads = 2, .head_dim = 16, .dtype = DType::kF16},
                                    .rows = 3}},
                   0),
      size_t{3} * 16 * (8 * 4 + 4 * 4 + 4 * 2));
  EXPECT_EQ(MinimumBytes({UploadOp{.bytes = 80}}, 0), 80u);
  EXPECT_EQ(MinimumBytes({EmbedOp{.table = {nullptr, DType::kBF16, 100, 64}, .rows = 3}}, 0),
            size_t{3} * 64 * (2 + 4));
  EXPECT_EQ(MinimumBytes({SampleOp{.vocab = 100, .rows = 3}}, 0), 1200u);
  EXPECT_EQ(MinimumBytes({PackOp{.dtype = DType::kF16, .n = 64, .k = 8, .rows = 16}}, 0),
            size_t{2} * 16 * 8 * 2);
}

TEST(Activations, EveryBufferIsReleased) {
  FaultyDevice device(CreateCpuDevice(1));
  {
    absl::StatusOr<std::unique_ptr<Activations>> buffers =
        Activations::Create(Config(), DType::kF16, 4, 4, device);
    ASSERT_THAT(buffers, IsOk());
    EXPECT_EQ(static_cast<void*>((*buffers)->rows()),
              (*buffers)->inputs_host.data<std::byte>() + sizeof(StepInputsHeader));
    EXPECT_GT(device.allocations().at("activations"), 0u);
  }
  EXPECT_EQ(device.allocated_bytes(), 0u);
  for (int64_t nth = 1; nth <= 10; ++nth) {
    device.FailOn(FaultyDevice::Kind::kAllocate, nth);
    EXPECT_FALSE(Activations::Create(Config(), DType::kF16, 4, 4, device).ok());
    EXPECT_EQ(device.allocated_bytes(), 0u);
  }
}

}  // namespace
}  // namespace latchd
