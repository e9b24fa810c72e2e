#include "kernels/cuda/common/packed_layout.h"

#include "kernels/api/ops.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/support/reference_random.h"

namespace latchd::cuda {
namespace {

// No GPU needed: the index arithmetic against the fragment tables of the PTX ISA.

TEST(PackedLayout, EveryElementHasItsOwnPlace) {
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{16, 32}, {24, 40}, {48, 576}, {7, 8}}) {
    std::set<size_t> places;
    for (int64_t r = 0; r < n; ++r) {
      for (int64_t c = 0; c < k; ++c) places.insert(PackedIndex(r, c, k));
    }
    EXPECT_EQ(places.size(), static_cast<size_t>(n * k));
    EXPECT_LT(*places.rbegin(), PackedElements(n, k));
  }
}

// mma.m16n8k16 written out: A register i of lane 4 g + t holds row g + 8 (i % 2), columns
// 2 t + 8 (i / 2) and the next; B register i holds rows 2 t + 8 i and the next of column g.
double EmulatedMma(const std::vector<double>& a_fragments, const std::vector<double>& b_fragments,
                   int row, int column) {
  double a[16][16], b[16][8], sum = 0;
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 8; ++i)
      a[g + 8 * (i / 2 % 2)][2 * t + 8 * (i / 4) + i % 2] =
          a_fragments[static_cast<size_t>(lane * 8 + i)];
    for (int i = 0; i < 4; ++i)
      b[2 * t + 8 * (i / 2) + i % 2][g] = b_fragments[static_cast<size_t>(lane * 4 + i)];
  }
  for (int i = 0; i < 16; ++i) sum += a[row][i] * b[i][column];
  return sum;
}

TEST(PackedLayout, FragmentsTimesRowMajorActivationsIsTheProduct) {
  reference::Random random;
  SCOPED_TRACE(random.note());
  constexpr int kN = 32, kK = 64, kRows = 8;
  std::vector<double> weight(kN * kK), x(kRows * kK), packed(PackedElements(kN, kK));
  for (double& v : weight) v = random.Normal();
  for (double& v : x) v = random.Normal();
  for (int r = 0; r < kN; ++r) {
    for (int c = 0; c < kK; ++c)
      packed[PackedIndex(r, c, kK)] = weight[static_cast<size_t>(r * kK + c)];
  }
  for (int o = 0; o < kN; ++o) {
    for (int row = 0; row < kRows; ++row) {
      double expected = 0, got = 0;
      for (int c = 0; c < kK; ++c)
        expected += weight[static_cast<size_t>(o * kK + c)] * x[static_cast<size_t>(row * kK + c)];
      for (int pair = 0; pair < kK / kPairCols; ++pair) {
        for (int unit = 0; unit < 2; ++unit) {
          const size_t at =
              (static_cast<size_t>(o / 16 * (kK / kPairCols) + pair)) * kPairElements +
              static_cast<size_t>(unit * kUnitElements);
          const std::vector<double> a(packed.begin() + static_cast<long>(at),
                                      packed.begin() + static_cast<long>(at + kUnitElements));
          std::vector<double> b(128);
          for (int lane = 0; lane < 32;
               ++lane) {  // lane's 16 bytes: row g, columns 8 t .. 8 t + 7; unit takes 4
            for (int i = 0; i < 4; ++i) {
              b[static_cast<size_t>(lane * 4 + i)] = x[static_cast<size_t>(
                  lane / 4 * kK + pair * kPairCols + lane % 4 * 8 + unit * 4 + i)];
            }
          }
          got += EmulatedMma(a, b, o % 16, row);
        }
      }
      EXPECT_NEAR(got, expected, 1e-9);
    }
  }
}

}  // namespace
}  // namespace latchd::cuda
