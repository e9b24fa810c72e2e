#include <gtest/gtest.h>

#include <cstring>

#include "kernels/api/op_table.h"
#include "kernels/cpu/worker_team.h"
#include "tests/support/reference_ops.h"
#include "tests/support/reference_random.h"

namespace latchd {
namespace {

using reference::PagedKv;
using reference::Random;

struct Shape {
  int32_t head_dim, group, kv_heads, window;
  float softcap;
  DType dtype;
};

// Queries over a poisoned, scrambled cache. Rows are separate slots (decode) or the end of slot 0
// (prefill).
struct AttentionCase {
  Shape shape;
  std::vector<RowMeta> meta;
  std::vector<float> q, out, sinks, bias;
  std::vector<char> workspace;
  AttentionOp op = {};

  AttentionCase(Random& random, const Shape& s, const PagedKv& kv, std::vector<RowMeta> rows,
                Phase phase)
      : shape(s), meta(std::move(rows)) {
    const int32_t q_heads = s.group * s.kv_heads;
    q = random.Normals(meta.size() * static_cast<size_t>(q_heads * s.head_dim));
    out.assign(q.size(), -77.0f);
    int32_t max_total = 1;
    for (size_t r = 0; r < meta.size(); ++r) {
      max_total = std::max(max_total, meta[r].total);
      const size_t width = q.size() / meta.size();
      if (meta[r].slot < 0)
        std::fill_n(q.begin() + static_cast<std::ptrdiff_t>(r * width), width, NAN);
    }
    op = {.meta = meta.data(),
          .q = q.data(),
          .kv = kv.view(),
          .q_heads = q_heads,
          .scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim)),
          .window = s.window,
          .softcap = s.softcap,
          .out = out.data(),
          .out_dtype = DType::kF32,
          .rows = static_cast<int32_t>(meta.size()),
          .phase = phase,
          .max_total = max_total};
    workspace.resize(CpuOps().workspace_bytes({op}));
    op.workspace = workspace.data();
    op.workspace_bytes = workspace.size();
  }
  AttentionCase(const AttentionCase&) = delete;

  // Bias with or without a row and a head axis; NaN beyond each row's total, where nobody may look.
  void AddSinksAndBias(Random& random) {
    const size_t keys = static_cast<size_t>(op.max_total);
    const bool per_row = random.Chance(0.7), per_head = random.Chance(0.7);
    sinks = random.Normals(static_cast<size_t>(op.q_heads));
    bias = random.Normals(static_cast<size_t>(op.rows) * op.q_heads * keys);
    op.head_sink = sinks.data();
    op.bias = bias.data();
    op.bias_head_stride = per_head ? op.max_total : 0;
    op.bias_row_stride = per_row ? int64_t{op.q_heads} * op.max_total : 0;
    for (int32_t r = 0; per_row && r < op.rows; ++r) {
      if (meta[static_cast<size_t>(r)].slot < 0) continue;
      for (int32_t h = 0; h < (per_head ? op.q_heads : 1); ++h) {
        float* own = bias.data() + r * op.bias_row_stride + h * op.bias_head_stride;
        std::fill(own + meta[static_cast<size_t>(r)].total, own + keys, NAN);
      }
    }
  }

  void Run() {
    const OpStatus status = CpuOps().attention(op, nullptr);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  void Check() const {
    const size_t head_dim = static_cast<size_t>(shape.head_dim);
    for (int32_t r = 0; r < op.rows; ++r) {
      for (int32_t h = 0; h < op.q_heads; ++h) {
        const float* got = out.data() + static_cast<size_t>(r * op.q_heads + h) * head_dim;
        if (meta[static_cast<size_t>(r)].slot < 0) {
          ASSERT_EQ(std::count(got, got + head_dim, -77.0f), shape.head_dim)
              << "skipped row " << r << " was written";
          continue;
        }
        const std::vector<double> want = reference::Attention(op, r, h);
        for (size_t d = 0; d < head_dim; ++d)
          ASSERT_NEAR(got[d], want[d], 2e-5) << "row " << r << " head " << h;
      }
    }
  }
};

std::vector<RowMeta> DecodeRows(Random& random, int32_t slots, int32_t capacity) {
  std::vector<RowMeta> rows;
  for (int32_t s = 0; s < slots; ++s) {
    const int32_t total = random.Int(1, capacity);
    rows.push_back(s > 0 && random.Chance(0.3) ? reference::Skipped()
                                               : RowMeta{s, 1, total - 1, total, total - 1, 0});
  }
  return rows;
}

void FillRows(Random& random, PagedKv& kv, const std::vector<RowMeta>& rows) {
  for (const RowMeta& m : rows) {
    if (m.slot >= 0) kv.Fill(random, m.slot, m.total);
  }
}

class AttentionTest : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(All, AttentionTest,
                         testing::Values(DType::kF32, DType::kF16, DType::kBF16),
                         [](const auto& info) { return std::string(Name(info.param)); });

std::vector<Shape> Shapes(DType dtype) {
  return {{32, 1, 2, -1, 0, dtype},   {64, 3, 3, -1, 0, dtype},  {64, 4, 2, 70, 0, dtype},
          {128, 8, 1, -1, 20, dtype}, {80, 1, 3, 1, 0, dtype},   {256, 4, 1, 33, 5, dtype},
          {44, 3, 1, -1, 0, dtype},   {96, 8, 2, 500, 0, dtype}, {7, 5, 1, -1, 30, dtype}};
}

TEST_P(AttentionTest, DecodeAgreesWithTheFormula) {
  Random random;
  SCOPED_TRACE(random.note());
  for (const Shape& s : Shapes(GetParam())) {
    SCOPED_TRACE(testing::Message()
                 << "head_dim " << s.head_dim << " group " << s.group << " window " << s.window);
    PagedKv kv(random, s.dtype, 5, 10, 5, s.kv_heads, s.head_dim);
    const std::vector<RowMeta> rows = DecodeRows(random, 5, 320);
    FillRows(random, kv, rows);
    AttentionCase c(random, s, kv, rows, Phase::kDecode);
    c.Run();
    c.Check();
    c.AddSinksAndBias(random);
    c.Run();
    c.Check();
  }
}

TEST_P(AttentionTest, PrefillAgreesWithTheFormula) {
  Random random;
  SCOPED_TRACE(random.note());
  for (const Shape& s : Shapes(GetParam())) {
    SCOPED_TRACE(testing::Message()
                 << "head_dim " << s.head_dim << " group " << s.group << " window " << s.window);
    PagedKv kv(random, s.dtype, 2, 20, 4, s.kv_heads, s.head_dim);
    std::vector<RowMeta> rows;
    const int32_t past = random.Int(0, 150), count = random.Int(2, 150);
    for (int32_t i = 0; i < count; ++i) {
      const int32_t total = past + i + 1;
      rows.push_back(i > 0 && i > count - 3 ? reference::Skipped()
                                            : RowMeta{1, 1, total - 1, total, total - 1, 0});
    }
    FillRows(random, kv, {RowMeta{1, 1, 0, past + count, 0, 0}});
    AttentionCase c(random, s, kv, rows, Phase::kPrefill);
    c.Run();
    c.Check();
    c.AddSinksAndBias(random);
    c.Run();
    c.Check();
  }
}

// Alone, batched, on one contiguous page, with any number of threads: the same bits.
TEST_P(AttentionTest, DecodeRowsDoNotDependOnBatchThreadsOrPaging) {
  Random random;
  SCOPED_TRACE(random.note());
  const Shape s = {64, 3, 3, -1, 0, GetParam()};
  PagedKv kv(random, s.dtype, 6, 40, 6, s.kv_heads, s.head_dim);
  std::vector<RowMeta> rows = DecodeRows(random, 6, 2560);
  FillRows(random, kv, rows);
  AttentionCase batch(random, s, kv, rows, Phase::kDecode);
  batch.Run();
  const size_t width = batch.q.size() / rows.size();
  for (size_t r = 0; r < rows.size(); ++r) {
    if (rows[r].slot < 0) continue;
    // The same keys and values on one page of another cache.
    PagedKv contiguous(random, s.dtype, 1, 1, 12, s.kv_heads, s.head_dim);
    const size_t bytes = static_cast<size_t>(s.head_dim) * SizeOf(s.dtype);
    for (int32_t h = 0; h < s.kv_heads; ++h) {
      for (int32_t t = 0; t < rows[r].total; ++t) {
        const size_t to = contiguous.view().Offset(0, h, t) * SizeOf(s.dtype);
        const size_t from = kv.view().Offset(rows[r].slot, h, t) * SizeOf(s.dtype);
        std::memcpy(contiguous.key().data() + to, kv.key().data() + from, bytes);
        std::memcpy(contiguous.value().data() + to, kv.value().data() + from, bytes);
      }
    }
    RowMeta meta = rows[r];
    meta.slot = 0;
    AttentionCase alone(random, s, contiguous, {meta}, Phase::kDecode);
    std::copy_n(batch.q.begin() + static_cast<std::ptrdiff_t>(r * width), width, alone.q.begin());
    const int threads = cpu::Threads();
    cpu::SetThreads(static_cast<int>(r) % 4 + 1);
    alone.Run();
    cpu::SetThreads(threads);
    ASSERT_EQ(std::memcmp(alone.out.data(), batch.out.data() + r * width, width * 4), 0)
        << "row " << r;
  }
}

// A NaN among the keys must reach the output, where NON_FINITE is judged.
TEST_P(AttentionTest, NanIsNotHidden) {
  Random random;
  SCOPED_TRACE(random.note());
  for (const Phase phase : {Phase::kDecode, Phase::kPrefill}) {
    for (const float softcap : {0.0f, 10.0f}) {
      const Shape s = {64, 2, 1, -1, softcap, GetParam()};
      PagedKv kv(random, s.dtype, 1, 10, 5, 1, 64);
      kv.Fill(random, 0, 100);
      const float nan = NAN;
      const int32_t token = random.Int(0, 99);
      ConvertFromF32(s.dtype, &nan,
                     kv.key().data() + kv.view().Offset(0, 0, token) * SizeOf(s.dtype), 1);
      AttentionCase c(random, s, kv, {{0, 1, 99, 100, 99, 0}}, phase);
      c.Run();
      for (const float v : c.out) ASSERT_TRUE(std::isnan(v)) << "token " << token;
    }
  }
}

TEST(AttentionTest, RefusesWhatItCannotDo) {
  Random random;
  const Shape s = {64, 2, 2, -1, 0, DType::kF32};
  PagedKv kv(random, s.dtype, 1, 1, 5, 2, 64);
  kv.Fill(random, 0, 4);
  AttentionCase c(random, s, kv, {{0, 1, 3, 4, 3, 0}}, Phase::kDecode);
  c.op.max_total = 3;
  EXPECT_EQ(CpuOps().attention(c.op, nullptr).code(), OpCode::kInvalidArgument);
  c.op.max_total = 4;
  c.op.workspace_bytes = 3;
  EXPECT_EQ(CpuOps().attention(c.op, nullptr).code(), OpCode::kFailedPrecondition);
  c.op.q_heads = 3;
  EXPECT_EQ(CpuOps().attention(c.op, nullptr).code(), OpCode::kInvalidArgument);
}

}  // namespace
}  // namespace latchd
