#include <gtest/gtest.h>

#include <cstring>

#include "kernels/api/op_table.h"
#include "tests/support/reference_ops.h"
#include "tests/support/reference_random.h"

namespace latchd {
namespace {

using reference::PagedKv;
using reference::Random;

struct PrepCase {
  int32_t head_dim, rotary_dim;
  bool interleaved, norm;
};

class AttentionPrepTest : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(All, AttentionPrepTest,
                         testing::Values(DType::kF32, DType::kF16, DType::kBF16),
                         [](const auto& info) { return std::string(Name(info.param)); });

// Queries and the appended keys and values agree with the formulas; skipped rows and every other
// element of the cache keep their bytes.
TEST_P(AttentionPrepTest, AgreesWithTheFormulaAndWritesNothingElse) {
  Random random;
  SCOPED_TRACE(random.note());
  constexpr int32_t kQHeads = 6, kKvHeads = 2, kRotaryRows = 40;
  for (const PrepCase& p : {PrepCase{64, 64, false, false}, PrepCase{64, 64, true, false},
                            PrepCase{128, 128, false, true}, PrepCase{80, 20, false, true},
                            PrepCase{80, 20, true, false}, PrepCase{33, 2, true, true},
                            PrepCase{256, 0, false, false}}) {
    SCOPED_TRACE(testing::Message() << "head_dim " << p.head_dim << " rotary_dim " << p.rotary_dim);
    PagedKv kv(random, GetParam(), 3, 4, 2, kKvHeads, p.head_dim);
    const std::vector<char> key_before = kv.key(), value_before = kv.value();
    const std::vector<RowMeta> meta = {
        {2, 1, 9, 10, 9, 0}, reference::Skipped(), {0, 1, 3, 4, 37, 0}, {0, 1, 4, 5, 0, 0}};
    const int32_t rows = static_cast<int32_t>(meta.size());
    const int32_t width = (kQHeads + 2 * kKvHeads) * p.head_dim;
    const std::vector<float> qkv = random.Normals(static_cast<size_t>(rows * width));
    const std::vector<float> q_norm = random.Normals(static_cast<size_t>(p.head_dim));
    const std::vector<float> k_norm = random.Normals(static_cast<size_t>(p.head_dim));
    std::vector<float> cosine, sine;
    for (int32_t i = 0; i < kRotaryRows * p.rotary_dim / 2; ++i) {
      const float angle = random.Normal(3.0f);
      cosine.push_back(std::cos(angle));
      sine.push_back(std::sin(angle));
    }
    std::vector<float> q(static_cast<size_t>(rows * kQHeads * p.head_dim), -5.0f);
    const AttentionPrepOp op = {.meta = meta.data(),
                                .qkv = qkv.data(),
                                .q_norm = p.norm ? q_norm.data() : nullptr,
                                .k_norm = p.norm ? k_norm.data() : nullptr,
                                .norm_eps = 1e-6f,
                                .cos = p.rotary_dim > 0 ? cosine.data() : nullptr,
                                .sin = sine.data(),
                                .rotary_dim = p.rotary_dim,
                                .rotary_interleaved = p.interleaved,
                                .q_heads = kQHeads,
                                .q = q.data(),
                                .kv = kv.view(),
                                .rows = rows};
    const OpStatus status = CpuOps().attention_prep(op, nullptr);
    ASSERT_TRUE(status.ok()) << status.message();

    std::vector<char> key_expected = key_before, value_expected = value_before;
    const size_t element = SizeOf(GetParam());
    const auto expect_and_accept = [&](std::vector<char>& now, std::vector<char>& expected,
                                       size_t index, double want) {
      ASSERT_NEAR(reference::Decode(GetParam(), now.data(), index), want,
                  2e-6 + std::abs(want) * (1.01 * reference::Epsilon(GetParam()) + 2e-6));
      std::memcpy(expected.data() + index * element, now.data() + index * element, element);
    };
    for (int32_t r = 0; r < rows; ++r) {
      const RowMeta& m = meta[static_cast<size_t>(r)];
      const float* row = qkv.data() + r * width;
      for (int32_t h = 0; h < kQHeads; ++h) {
        const float* got = q.data() + (r * kQHeads + h) * p.head_dim;
        if (m.slot < 0) {
          ASSERT_EQ(std::count(got, got + p.head_dim, -5.0f), p.head_dim);
          continue;
        }
        const std::vector<double> want =
            reference::PrepareHead(op, row + h * p.head_dim, op.q_norm, m.position);
        for (int32_t d = 0; d < p.head_dim; ++d)
          ASSERT_NEAR(got[d], want[static_cast<size_t>(d)], 5e-6);
      }
      for (int32_t h = 0; h < kKvHeads && m.slot >= 0; ++h) {
        const float* k = row + (kQHeads + h) * p.head_dim;
        const float* v = row + (kQHeads + kKvHeads + h) * p.head_dim;
        const std::vector<double> want = reference::PrepareHead(op, k, op.k_norm, m.position);
        for (int32_t d = 0; d < p.head_dim; ++d) {
          const size_t at = reference::KvIndex(kv.view(), m.slot, h, m.past, d);
          expect_and_accept(kv.key(), key_expected, at, want[static_cast<size_t>(d)]);
          expect_and_accept(kv.value(), value_expected, at, v[d]);
        }
      }
    }
    EXPECT_EQ(kv.key(), key_expected) << "a key that is not the row's own was written";
    EXPECT_EQ(kv.value(), value_expected) << "a value that is not the row's own was written";
  }
}

TEST(AttentionPrepTest, RefusesBadShapes) {
  Random random;
  PagedKv kv(random, DType::kF32, 1, 1, 2, 2, 8);
  const float zero = 0;
  AttentionPrepOp op = {
      .cos = &zero, .sin = &zero, .rotary_dim = 6, .q_heads = 3, .kv = kv.view(), .rows = 0};
  EXPECT_EQ(CpuOps().attention_prep(op, nullptr).code(), OpCode::kInvalidArgument);
  op.q_heads = 4;
  EXPECT_TRUE(CpuOps().attention_prep(op, nullptr).ok());
  op.rotary_dim = 10;
  EXPECT_EQ(CpuOps().attention_prep(op, nullptr).code(), OpCode::kInvalidArgument);
}

// Split, rotation and append in one call or in three: the same bits. A row that attends only leaves
// the cache alone.
TEST_P(AttentionPrepTest, PartsAddUpAndAttendOnlyAppendsNothing) {
  Random random;
  SCOPED_TRACE(random.note());
  constexpr int32_t kHeadDim = 32, kQHeads = 4, kKvHeads = 2, kRows = 3, kRotaryRows = 16;
  const std::vector<float> qkv = random.Normals(kRows * (kQHeads + 2 * kKvHeads) * kHeadDim);
  const std::vector<float> cosine = random.Normals(kRotaryRows * kHeadDim / 2);
  const std::vector<float> sine = random.Normals(kRotaryRows * kHeadDim / 2);
  std::vector<RowMeta> meta = {{0, 1, 6, 7, 6, 0}, {1, 1, 2, 3, 9, 0}, {2, 1, 0, 1, 0, 0}};
  PagedKv kv(random, GetParam(), 3, 4, 2, kKvHeads, kHeadDim);
  const std::vector<char> key_before = kv.key(), value_before = kv.value();
  std::vector<float> q(kRows * kQHeads * kHeadDim), q_of_parts(q.size());
  AttentionPrepOp op = {.meta = meta.data(),
                        .qkv = qkv.data(),
                        .cos = cosine.data(),
                        .sin = sine.data(),
                        .rotary_dim = kHeadDim,
                        .q_heads = kQHeads,
                        .q = q.data(),
                        .kv = kv.view(),
                        .rows = kRows};
  ASSERT_TRUE(CpuOps().attention_prep(op, nullptr).ok());
  const std::vector<char> key = kv.key(), value = kv.value();
  std::copy(key_before.begin(), key_before.end(), kv.key().begin());
  std::copy(value_before.begin(), value_before.end(), kv.value().begin());
  op.q = q_of_parts.data();
  for (const uint32_t part : {kPrepQuery, kPrepKey, kPrepValue}) {
    op.parts = part;
    ASSERT_TRUE(CpuOps().attention_prep(op, nullptr).ok());
  }
  EXPECT_EQ(std::memcmp(q.data(), q_of_parts.data(), q.size() * sizeof(float)), 0);
  EXPECT_EQ(key, kv.key());
  EXPECT_EQ(value, kv.value());

  op.parts = kPrepAll;
  for (RowMeta& m : meta) m.flags = kRowAttendOnly, ++m.past;
  ASSERT_TRUE(CpuOps().attention_prep(op, nullptr).ok());
  EXPECT_EQ(key, kv.key());
  EXPECT_EQ(value, kv.value());
}

}  // namespace
}  // namespace latchd
