#include "runtime/program/transformer_weights.h"

#include <cstring>

#include "runtime/device/cpu_device.h"
#include "runtime/program/rope_table.h"
#include "tests/support/faulty_device.h"
#include "tests/support/model_files.h"
#include "tests/support/reference_random.h"
#include "tests/support/status_matchers.h"

namespace latchd {
namespace {

using testing::Fails;
using testing::FaultyDevice;
using testing::IsOk;
using testing::TinyConfig;

using Weights = std::unique_ptr<TransformerWeights>;

std::vector<char> Rows(const ModelSource& source, WeightRole role, int64_t layer, DType dtype) {
  absl::StatusOr<WeightShape> shape = source.Shape(role, layer);
  EXPECT_THAT(shape, IsOk());
  std::vector<char> rows(static_cast<size_t>(shape->rows * shape->columns) * SizeOf(dtype));
  EXPECT_THAT(source.ReadRows(role, layer, 0, shape->rows, dtype, rows.data()), IsOk());
  return rows;
}

// Whole matrices one below the other; the CPU keeps weights row-major.
void ExpectStacked(const ModelSource& source, const WeightView& view, int64_t layer,
                   const std::vector<WeightRole>& roles) {
  std::vector<char> expected;
  for (const WeightRole role : roles) {
    const std::vector<char> rows = Rows(source, role, layer, view.dtype);
    expected.insert(expected.end(), rows.begin(), rows.end());
  }
  ASSERT_EQ(static_cast<size_t>(view.n * view.k) * SizeOf(view.dtype), expected.size());
  EXPECT_EQ(std::memcmp(view.data, expected.data(), expected.size()), 0);
}

void ExpectVector(const ModelSource& source, const float* data, int64_t layer,
                  const std::vector<WeightRole>& roles) {
  if (!source.Has(roles[0], layer)) {
    EXPECT_EQ(data, nullptr);
    return;
  }
  ASSERT_NE(data, nullptr);
  for (const WeightRole role : roles) {
    const std::vector<char> rows = Rows(source, role, layer, DType::kF32);
    EXPECT_EQ(std::memcmp(data, rows.data(), rows.size()), 0) << Name(role);
    data += rows.size() / sizeof(float);
  }
}

// Row r of the interleaved matrix by the definition of Epilogue::kSiluMul: gate 0-7, up 0-7, gate
// 8-15, ...
void ExpectInterleaved(const ModelSource& source, const WeightView& view, int64_t layer) {
  const std::vector<char> gate = Rows(source, WeightRole::kGate, layer, view.dtype);
  const std::vector<char> up = Rows(source, WeightRole::kUp, layer, view.dtype);
  const size_t row_bytes = static_cast<size_t>(view.k) * SizeOf(view.dtype);
  ASSERT_EQ(static_cast<size_t>(view.n) * row_bytes, gate.size() + up.size());
  for (size_t r = 0; r < static_cast<size_t>(view.n); ++r) {
    const std::vector<char>& from = r % 16 < 8 ? gate : up;
    const size_t row = r / 16 * 8 + r % 8;
    ASSERT_EQ(std::memcmp(static_cast<const char*>(view.data) + r * row_bytes,
                          from.data() + row * row_bytes, row_bytes),
              0)
        << "row " << r;
  }
}

void ExpectHolds(const TransformerWeights& weights, const ModelSource& source) {
  using enum WeightRole;
  const ModelConfig& config = source.config();
  ExpectStacked(source, weights.embedding, 0, {kEmbedding});
  if (config.tied_embeddings) {
    EXPECT_EQ(weights.head.data, weights.embedding.data) << "tied: one copy";
  } else {
    EXPECT_NE(weights.head.data, weights.embedding.data);
    ExpectStacked(source, weights.head, 0, {kOutputHead});
  }
  ExpectVector(source, weights.final_norm, 0, {kFinalNorm});
  ASSERT_EQ(weights.layers.size(), static_cast<size_t>(config.layers));
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const LayerWeights& w = weights.layers[static_cast<size_t>(layer)];
    ExpectVector(source, w.attention_norm, layer, {kAttentionNorm});
    ExpectStacked(source, w.qkv, layer, {kQ, kK, kV});
    ExpectVector(source, w.qkv_bias, layer, {kQBias, kKBias, kVBias});
    ExpectVector(source, w.q_norm, layer, {kQNorm});
    ExpectVector(source, w.k_norm, layer, {kKNorm});
    ExpectStacked(source, w.output, layer, {kAttentionOutput});
    ExpectVector(source, w.output_bias, layer, {kAttentionOutputBias});
    ExpectVector(source, w.mlp_norm, layer, {kMlpNorm});
    ExpectInterleaved(source, w.gate_up, layer);
    ExpectStacked(source, w.down, layer, {kDown});
    ExpectVector(source, w.down_bias, layer, {kDownBias});
  }
  const RopeTable rope = MakeRopeTable(config, weights.rotary_rows());
  EXPECT_EQ(std::memcmp(weights.rope_cos, rope.cos.data(), rope.cos.size() * 4), 0);
  EXPECT_EQ(std::memcmp(weights.rope_sin, rope.sin.data(), rope.sin.size() * 4), 0);
}

// Both ways of loading: straight into place, and through the staging buffer and a pack op.
class TransformerWeightsLoad : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Ways, TransformerWeightsLoad, ::testing::Bool(),
                         [](const auto& way) { return way.param ? "Packed" : "InPlace"; });

TEST_P(TransformerWeightsLoad, HoldsEveryTensorOfEachArchitectureAndReleasesEveryBuffer) {
  reference::Random random;
  SCOPED_TRACE(random.note());
  FaultyDevice device(CreateCpuDevice(2), GetParam());
  for (const char* name : {"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      SCOPED_TRACE(std::string(name) + " " + std::string(Name(dtype)));
      std::unique_ptr<ModelSource> source = RandomModel(TinyConfig(name), random.Word());
      absl::StatusOr<Weights> weights =
          TransformerWeights::Load(*source, device, dtype, 100, nullptr);
      ASSERT_THAT(weights, IsOk());
      EXPECT_EQ((*weights)->dtype(), dtype);
      ExpectHolds(**weights, *source);
      EXPECT_EQ(device.allocations().contains("staging"), GetParam());
      EXPECT_EQ(device.calls(FaultyDevice::Kind::kRun) > 0, GetParam());
      EXPECT_GT(device.allocations().at("weights"), 0u);
      weights->reset();
      EXPECT_EQ(device.allocated_bytes(), 0u);
    }
  }
}

TEST(TransformerWeights, AModelFileLoadsAsTheModelItWasWrittenFrom) {
  const testing::TempDir folder;
  ModelConfig config = TinyConfig("LlamaForCausalLM");
  config.mlp_bias = config.output_bias = config.qkv_bias = true;
  testing::MakeTinyModel(folder.path(), config, 5);
  absl::StatusOr<std::unique_ptr<ModelSource>> source = OpenModel(folder.path());
  ASSERT_THAT(source, IsOk());
  FaultyDevice device(CreateCpuDevice(2));
  int64_t done = 0, total = 0;
  absl::StatusOr<Weights> weights = TransformerWeights::Load(
      **source, device, DType::kF32, 64, [&](int64_t now_done, int64_t now_total) {
        EXPECT_GE(now_done, done);
        done = now_done, total = now_total;
      });
  ASSERT_THAT(weights, IsOk());
  ExpectHolds(**weights, *RandomModel((*source)->config(), 5));
  EXPECT_GT(done, 0);
  EXPECT_EQ(done, total);

  // Biases of gate and up are interleaved like their rows.
  const float* both = (*weights)->layers[1].gate_up_bias;
  ASSERT_NE(both, nullptr);
  const auto gate = Rows(**source, WeightRole::kGateBias, 1, DType::kF32);
  const auto up = Rows(**source, WeightRole::kUpBias, 1, DType::kF32);
  EXPECT_EQ(std::memcmp(both + 16, gate.data() + 8 * 4, 8 * 4), 0);
  EXPECT_EQ(std::memcmp(both + 24, up.data() + 8 * 4, 8 * 4), 0);
}

// Larger than a batch (16 MiB): loaded in pieces that must meet exactly.
TEST_P(TransformerWeightsLoad, AMatrixLargerThanABatchIsWhole) {
  ModelConfig config = TinyConfig("LlamaForCausalLM");
  config.layers = 1;
  config.vocab = 70001;
  FaultyDevice device(CreateCpuDevice(2), GetParam());
  std::unique_ptr<ModelSource> source = RandomModel(config, 3);
  absl::StatusOr<Weights> weights =
      TransformerWeights::Load(*source, device, DType::kF32, 16, nullptr);
  ASSERT_THAT(weights, IsOk());
  ExpectStacked(*source, (*weights)->embedding, 0, {WeightRole::kEmbedding});
}

TEST(TransformerWeights, AWidthThatCannotBeInterleavedIsRefusedByName) {
  ModelConfig config = TinyConfig("LlamaForCausalLM");
  config.feed_forward = 100;
  FaultyDevice device(CreateCpuDevice(1));
  std::unique_ptr<ModelSource> source = RandomModel(config, 3);
  EXPECT_THAT(TransformerWeights::Load(*source, device, DType::kF32, 16, nullptr),
              Fails(absl::StatusCode::kUnimplemented,
                    "feed_forward (intermediate_size): expected a multiple of 8, got 100"));
  EXPECT_EQ(device.allocated_bytes(), 0u);
}

// Each call that a load makes fails once; the error comes back and nothing stays allocated.
TEST(TransformerWeights, AFailureAnywhereReleasesEverything) {
  std::unique_ptr<ModelSource> source = RandomModel(TinyConfig("Qwen2ForCausalLM"), 3);
  using Kind = FaultyDevice::Kind;
  for (const Kind kind : {Kind::kAllocate, Kind::kRun, Kind::kUpload, Kind::kSynchronize}) {
    FaultyDevice counting(CreateCpuDevice(1), /*packs=*/true);
    ASSERT_THAT(TransformerWeights::Load(*source, counting, DType::kF32, 16, nullptr), IsOk());
    const int64_t calls = counting.calls(kind);
    ASSERT_GT(calls, 1);
    for (int64_t nth = 1; nth <= calls; ++nth) {
      FaultyDevice device(CreateCpuDevice(1), /*packs=*/true);
      device.FailOn(kind, nth);
      EXPECT_THAT(TransformerWeights::Load(*source, device, DType::kF32, 16, nullptr),
                  Fails(absl::StatusCode::kInternal, "injected fault"));
      EXPECT_EQ(device.allocated_bytes(), 0u) << nth << " of " << calls;
    }
  }
}

}  // namespace
}  // namespace latchd
