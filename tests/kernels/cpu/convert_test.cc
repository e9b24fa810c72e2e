#include "kernels/api/convert.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "kernels/api/philox.h"
#include "tests/support/reference_ops.h"
#include "tests/support/reference_random.h"

namespace latchd {
namespace {

using reference::Decode;

TEST(ConvertTest, EveryHalfAndBfloatDecodesByDefinitionAndComesBack) {
  for (uint32_t word = 0; word < 65536; ++word) {
    const uint16_t w = static_cast<uint16_t>(word);
    const double half = Decode(DType::kF16, &w, 0), bfloat = Decode(DType::kBF16, &w, 0);
    if (std::isnan(half)) {
      EXPECT_TRUE(std::isnan(F16ToF32(w)));
      EXPECT_TRUE(std::isnan(F16ToF32(F32ToF16(F16ToF32(w)))));
    } else {
      EXPECT_EQ(static_cast<double>(F16ToF32(w)), half) << word;
      EXPECT_EQ(F32ToF16(F16ToF32(w)), w);
    }
    if (std::isnan(bfloat)) {
      EXPECT_TRUE(std::isnan(BF16ToF32(F32ToBF16(BF16ToF32(w)))));
    } else {
      EXPECT_EQ(static_cast<double>(BF16ToF32(w)), bfloat) << word;
      EXPECT_EQ(F32ToBF16(BF16ToF32(w)), w);
    }
  }
}

// The nearest representable value, ties to the even word, found by looking at both neighbours.
template <typename ToWord>
void ExpectNearest(DType dtype, float value, ToWord to_word) {
  const uint16_t word = to_word(value);
  const uint16_t magnitude = word & 0x7fff;
  if (std::isinf(Decode(dtype, &word, 0)) || magnitude == 0) return;
  const double error = std::abs(Decode(dtype, &word, 0) - value);
  for (const int step : {-1, 1}) {
    const uint16_t neighbour = static_cast<uint16_t>(word + step);
    const double other = std::abs(Decode(dtype, &neighbour, 0) - value);
    if (std::isnan(other)) continue;
    EXPECT_LE(error, other) << Name(dtype) << " " << value;
    if (error == other) {
      EXPECT_EQ(word % 2, 0) << Name(dtype) << " tie at " << value;
    }
  }
}

TEST(ConvertTest, RoundsToNearestEven) {
  reference::Random random;
  SCOPED_TRACE(random.note());
  for (int i = 0; i < 200000; ++i) {
    const float value = std::ldexp(random.Normal(), random.Int(-30, 14));
    ExpectNearest(DType::kF16, value, F32ToF16);
    ExpectNearest(DType::kBF16, value, F32ToBF16);
    // Exactly half-way between two neighbours.
    const uint16_t word = static_cast<uint16_t>(random.Int(1, 0x7bfe));
    const uint16_t next = static_cast<uint16_t>(word + 1);
    ExpectNearest(DType::kF16, (F16ToF32(word) + F16ToF32(next)) / 2, F32ToF16);
  }
  EXPECT_EQ(F32ToF16(65519.0f), 0x7bff);
  EXPECT_EQ(F32ToF16(65520.0f), 0x7c00) << "half-way to the next power of two rounds to infinity";
  EXPECT_EQ(F32ToF16(-1e9f), 0xfc00);
  EXPECT_EQ(F32ToF16(0x1p-25f), 0) << "a tie with zero is even";
  EXPECT_EQ(F32ToF16(0x1.8p-25f), 1);
}

// Known answers of Random123 1.09, kat_vectors.
TEST(PhiloxTest, KnownAnswers) {
  const auto expect = [](uint64_t key, uint64_t low, uint64_t high, std::array<uint32_t, 4> words) {
    const Philox4x32 got = Philox(key, low, high);
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(got.v[i], words[i]);
  };
  expect(0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  expect(~0ull, ~0ull, ~0ull, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  expect(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e,
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST(PhiloxTest, UniformNeverReachesItsEnds) {
  EXPECT_GT(UniformOpen(0), 0.0f);
  EXPECT_LT(UniformOpen(~0u), 1.0f);
  EXPECT_TRUE(std::isfinite(std::log(-std::log(UniformOpen(0)))));
  EXPECT_TRUE(std::isfinite(std::log(-std::log(UniformOpen(~0u)))));
}

}  // namespace
}  // namespace latchd
