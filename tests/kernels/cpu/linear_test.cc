#include <gtest/gtest.h>

#include <cstring>

#include "kernels/api/op_table.h"
#include "kernels/cpu/worker_team.h"
#include "tests/support/reference_ops.h"
#include "tests/support/reference_random.h"

namespace latchd {
namespace {

using reference::Random;

constexpr float kCanary = 12345.0f;

// One linear with random data; skipped rows have NaN inputs and must keep their outputs.
struct LinearCase {
  Random& random;
  int64_t n, k;
  int32_t rows;
  std::vector<char> weights, x, y;
  std::vector<float> norm, bias;
  std::vector<RowMeta> meta;
  std::vector<char> workspace;
  LinearOp op = {};

  LinearCase(Random& r, int64_t n_in, int64_t k_in, int32_t rows_in, DType dtype, Epilogue epilogue,
             bool with_norm, bool with_bias, Phase phase, DType x_dtype = DType::kF32,
             DType y_dtype = DType::kF32)
      : random(r), n(n_in), k(k_in), rows(rows_in) {
    weights = reference::Encode(dtype, random.Normals(static_cast<size_t>(n * k), 0.1f));
    std::vector<float> input = random.Normals(static_cast<size_t>(rows * k));
    for (int32_t i = 0; i < rows; ++i) {
      const bool live = rows == 1 || !random.Chance(0.2);
      meta.push_back(live ? RowMeta{i, 0, 0, 1, 0, 0} : reference::Skipped());
      if (!live) std::fill_n(input.begin() + i * k, k, NAN);
    }
    x = reference::Encode(x_dtype, input);
    norm = random.Normals(static_cast<size_t>(k));
    bias = random.Normals(static_cast<size_t>(n));
    y = reference::Encode(y_dtype, std::vector<float>(static_cast<size_t>(rows * n), kCanary));
    op = {.meta = meta.data(),
          .x = x.data(),
          .x_dtype = x_dtype,
          .norm_weight = with_norm ? norm.data() : nullptr,
          .norm_eps = 1e-5f,
          .weight = {weights.data(), dtype, n, k},
          .bias = with_bias ? bias.data() : nullptr,
          .epilogue = epilogue,
          .y = y.data(),
          .y_dtype = y_dtype,
          .rows = rows,
          .phase = phase};
    workspace.resize(CpuOps().workspace_bytes({op}));
    op.workspace = workspace.data();
    op.workspace_bytes = workspace.size();
  }
  LinearCase(const LinearCase&) = delete;

  int64_t width() const { return op.epilogue == Epilogue::kSiluMul ? n / 2 : n; }

  void Run() {
    const OpStatus status = CpuOps().linear(op, nullptr);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  void Check() {
    const std::vector<double> before(static_cast<size_t>(width()), kCanary);
    const double canary =
        reference::Decode(op.y_dtype, reference::Encode(op.y_dtype, {kCanary}).data(), 0);
    for (int32_t r = 0; r < rows; ++r) {
      const bool live = meta[static_cast<size_t>(r)].slot >= 0;
      const std::vector<double> want =
          live ? reference::Linear(op, r, before) : std::vector<double>();
      for (int64_t j = 0; j < width(); ++j) {
        const double got =
            reference::Decode(op.y_dtype, y.data(), static_cast<size_t>(r * width() + j));
        if (!live) {
          ASSERT_EQ(got, canary) << "skipped row " << r << " was written";
          continue;
        }
        const double w = want[static_cast<size_t>(j)];
        // The sum of k products of f32 rounding, then the output's own rounding.
        const double bound = 2e-6 * std::sqrt(static_cast<double>(k)) * 4 +
                             std::abs(w) * (4e-6 + reference::Epsilon(op.y_dtype));
        ASSERT_NEAR(got, w, bound) << "row " << r << " column " << j;
      }
    }
  }
};

class LinearTest : public testing::TestWithParam<std::tuple<DType, Phase, Epilogue>> {};

TEST_P(LinearTest, AgreesWithTheFormulaForOddSizes) {
  const auto [dtype, phase, epilogue] = GetParam();
  Random random;
  SCOPED_TRACE(random.note());
  for (int i = 0; i < 12; ++i) {
    const int64_t n = epilogue == Epilogue::kSiluMul ? 16 * random.Int(1, 20) : random.Int(1, 300);
    const int64_t k = random.Int(1, 400);
    const int32_t rows = phase == Phase::kDecode ? random.Int(1, 20) : random.Int(1, 70);
    SCOPED_TRACE(testing::Message() << "n " << n << " k " << k << " rows " << rows);
    LinearCase c(random, n, k, rows, dtype, epilogue, random.Chance(0.5), random.Chance(0.5),
                 phase);
    c.Run();
    c.Check();
  }
}
INSTANTIATE_TEST_SUITE_P(All, LinearTest,
                         testing::Combine(testing::Values(DType::kF32, DType::kF16, DType::kBF16),
                                          testing::Values(Phase::kDecode, Phase::kPrefill),
                                          testing::Values(Epilogue::kStore, Epilogue::kResidual,
                                                          Epilogue::kSiluMul)));

TEST(LinearTest, SixteenBitInputsAndOutputs) {
  Random random;
  SCOPED_TRACE(random.note());
  for (const DType x : {DType::kF16, DType::kBF16}) {
    for (const DType y : {DType::kF16, DType::kBF16}) {
      LinearCase c(random, 96, 123, 5, DType::kF16, Epilogue::kSiluMul, true, true, Phase::kDecode,
                   x, y);
      c.Run();
      c.Check();
    }
  }
}

// A row alone, in any batch, and with any number of threads: the same bits.
TEST(LinearTest, DecodeRowsDoNotDependOnBatchOrThreads) {
  Random random;
  SCOPED_TRACE(random.note());
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    LinearCase batch(random, 1040, 203, 19, dtype, Epilogue::kSiluMul, true, true, Phase::kDecode);
    batch.Run();
    for (int32_t r = 0; r < batch.rows; ++r) {
      if (batch.meta[static_cast<size_t>(r)].slot < 0) continue;
      LinearOp alone = batch.op;
      std::vector<float> y(static_cast<size_t>(batch.width()));
      alone.meta += r;
      alone.x = static_cast<const float*>(alone.x) + r * batch.k;
      alone.y = y.data();
      alone.rows = 1;
      const int threads = cpu::Threads();
      cpu::SetThreads(r % 3 + 1);
      ASSERT_TRUE(CpuOps().linear(alone, nullptr).ok());
      cpu::SetThreads(threads);
      ASSERT_EQ(std::memcmp(y.data(), batch.y.data() + static_cast<size_t>(r) * y.size() * 4,
                            y.size() * 4),
                0)
          << Name(dtype) << " row " << r;
    }
  }
}

TEST(LinearTest, RefusesWhatItCannotDo) {
  Random random;
  LinearCase small(random, 32, 16, 2, DType::kF32, Epilogue::kStore, false, false, Phase::kDecode);
  small.op.workspace_bytes = 8;
  const OpStatus status = CpuOps().linear(small.op, nullptr);
  EXPECT_EQ(status.code(), OpCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("got 8"), std::string::npos) << status.message();
  LinearCase odd(random, 24, 16, 2, DType::kF32, Epilogue::kStore, false, false, Phase::kDecode);
  odd.op.epilogue = Epilogue::kSiluMul;
  EXPECT_EQ(CpuOps().linear(odd.op, nullptr).code(), OpCode::kInvalidArgument);
}

// A large gate must not turn into NaN, and NaN must stay visible.
TEST(LinearTest, SiluOfExtremeGates) {
  for (const float gate : {-1000.0f, -90.0f, 0.0f, 90.0f, 1000.0f, NAN}) {
    std::vector<float> weights(16, 0.0f), bias(16, 1.0f), x = {1.0f}, y(8, kCanary);
    std::fill_n(bias.begin(), 8, gate);
    const RowMeta meta = {0, 0, 0, 1, 0, 0};
    std::vector<char> workspace(4096);
    const LinearOp op = {.meta = &meta,
                         .x = x.data(),
                         .weight = {weights.data(), DType::kF32, 16, 1},
                         .bias = bias.data(),
                         .epilogue = Epilogue::kSiluMul,
                         .y = y.data(),
                         .rows = 1,
                         .phase = Phase::kDecode,
                         .workspace = workspace.data(),
                         .workspace_bytes = workspace.size()};
    ASSERT_TRUE(CpuOps().linear(op, nullptr).ok());
    if (std::isnan(gate)) {
      EXPECT_TRUE(std::isnan(y[0]));
    } else {
      EXPECT_NEAR(y[0], gate / (1.0 + std::exp(-static_cast<double>(gate))), 1e-3) << gate;
    }
  }
}

}  // namespace
}  // namespace latchd
