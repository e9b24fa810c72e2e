#include "runtime/program/rope_table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <complex>

#include "tests/support/reference_random.h"

namespace latchd {
namespace {

constexpr long double kPi = 3.14159265358979323846264338327950288L;

ModelConfig Config(int64_t rotary_dim, float theta, RopeScaling scaling = {}) {
  ModelConfig config;
  config.rotary_dim = rotary_dim;
  config.rope_theta = theta;
  config.rope_scaling = scaling;
  return config;
}

// Turns each pair step by step: position p is position p - 1 rotated by the pair's frequency, as
// multiplication of unit complex numbers in long double. `frequency(i)` in radians a token.
template <typename F>
void ExpectTable(const ModelConfig& config, int64_t rows, F frequency) {
  const RopeTable table = MakeRopeTable(config, rows);
  const size_t half = static_cast<size_t>(config.rotary_dim / 2);
  ASSERT_EQ(table.cos.size(), half * static_cast<size_t>(rows));
  ASSERT_EQ(table.sin.size(), table.cos.size());
  for (size_t i = 0; i < half; ++i) {
    const long double f = frequency(static_cast<int64_t>(i));
    const std::complex<long double> turn(std::cos(f), std::sin(f));
    std::complex<long double> angle = 1;
    for (int64_t position = 0; position < rows; ++position) {
      const size_t at = static_cast<size_t>(position) * half + i;
      ASSERT_NEAR(table.cos[at], static_cast<double>(angle.real()), 2e-7) << position << ", " << i;
      ASSERT_NEAR(table.sin[at], static_cast<double>(angle.imag()), 2e-7) << position << ", " << i;
      angle *= turn;
    }
  }
}

// theta^(-2i/d) as successive division by theta^(2/d).
long double Plain(const ModelConfig& config, int64_t i) {
  const long double ratio =
      std::exp(-2.0L * std::log(static_cast<long double>(config.rope_theta)) / config.rotary_dim);
  long double frequency = 1;
  for (int64_t n = 0; n < i; ++n) frequency *= ratio;
  return frequency;
}

TEST(RopeTable, PlainFrequencies) {
  for (const int64_t dim : {2, 16, 64, 128}) {
    for (const float theta : {100.0f, 10000.0f, 500000.0f}) {
      const ModelConfig config = Config(dim, theta);
      ExpectTable(config, 300, [&](int64_t i) { return Plain(config, i); });
    }
  }
}

TEST(RopeTable, PositionZeroDoesNotTurnAndPairZeroTurnsByOneRadian) {
  const RopeTable table = MakeRopeTable(Config(8, 10000.0f), 2);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(table.cos[static_cast<size_t>(i)], 1.0f);
    EXPECT_EQ(table.sin[static_cast<size_t>(i)], 0.0f);
  }
  EXPECT_FLOAT_EQ(table.cos[4], 0.5403023f);
  EXPECT_FLOAT_EQ(table.sin[4], 0.8414710f);
  EXPECT_TRUE(MakeRopeTable(Config(8, 10000.0f), 0).cos.empty());
}

TEST(RopeTable, FarPositionsKeepSinglePrecision) {
  const RopeTable table = MakeRopeTable(Config(2, 10000.0f), 131072);
  // Pair 0 turns one radian a token; f32 angles would be off by 0.004 here.
  EXPECT_NEAR(table.sin[131071], std::sin(131071.0), 1e-7);
  EXPECT_NEAR(table.cos[131071], std::cos(131071.0), 1e-7);
}

TEST(RopeTable, LinearScalingIsTheTableOfSmallerPositions) {
  const RopeTable plain = MakeRopeTable(Config(16, 10000.0f), 64);
  const RopeTable scaled = MakeRopeTable(
      Config(16, 10000.0f, {.kind = RopeScaling::Kind::kLinear, .factor = 4.0f}), 256);
  for (size_t position = 0; position < 64; ++position) {
    for (size_t i = 0; i < 8; ++i) {
      EXPECT_FLOAT_EQ(scaled.cos[4 * position * 8 + i], plain.cos[position * 8 + i]);
      EXPECT_NEAR(scaled.sin[4 * position * 8 + i], plain.sin[position * 8 + i], 1e-7f);
    }
  }
}

// Llama 3.1: pairs that turn often within the original context are kept, those that turn less than
// low_freq_factor times are slowed by the factor, and between the two the share moves linearly with
// the number of turns. Written in turns, where the release code writes it in wavelengths.
TEST(RopeTable, Llama3ScalingByTheNumberOfTurns) {
  const RopeScaling scaling = {.kind = RopeScaling::Kind::kLlama3,
                               .factor = 8.0f,
                               .low_freq_factor = 1.0f,
                               .high_freq_factor = 4.0f,
                               .original_context_tokens = 8192};
  const ModelConfig config = Config(128, 500000.0f, scaling);
  int kept = 0, slowed = 0, between = 0;
  ExpectTable(config, 200, [&](int64_t i) {
    const long double f = Plain(config, i);
    const long double turns = f * 8192 / (2 * kPi);
    const long double share = std::min(1.0L, std::max(0.0L, (turns - 1) / (4 - 1)));
    ++(share == 1 ? kept : share == 0 ? slowed : between);
    return f * (share + (1 - share) / 8);
  });
  EXPECT_GT(kept, 0);
  EXPECT_GT(slowed, 0);
  EXPECT_GT(between, 0);
}

}  // namespace
}  // namespace latchd
