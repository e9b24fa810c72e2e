#include "tests/kernels/cuda/cuda_fixture.h"

namespace latchd {
namespace {

using reference::PagedKv;
using reference::Random;

struct AttentionShape {
  int32_t q_heads, kv_heads, head_dim;
  int32_t window = -1;
  float softcap = 0.0f;
};

// Half the time, sinks and a bias with or without a row and a head axis.
struct SinksAndBias {
  SinksAndBias(Random& random, const AttentionOp& op)
      : used(random.Chance(0.5)),
        per_row(random.Chance(0.7)),
        per_head(random.Chance(0.7)),
        sinks(random.Normals(static_cast<size_t>(op.q_heads))),
        bias(random.Normals(static_cast<size_t>(op.rows) * op.q_heads * op.max_total)) {}
  void Use(AttentionOp& op) const {
    if (!used) return;
    op.head_sink = sinks.data();
    op.bias = bias.data();
    op.bias_head_stride = per_head ? op.max_total : 0;
    op.bias_row_stride = per_row ? int64_t{op.q_heads} * op.max_total : 0;
  }
  bool used, per_row, per_head;
  std::vector<float> sinks, bias;
};

class CudaAttention : public CudaTest {
 protected:
  // The same cache on the device.
  KvView MirrorKv(PagedKv& kv) {
    KvView view = kv.view();
    const size_t slots = table_entries_ / static_cast<size_t>(view.max_pages);
    view.page_table = Mirror(
        std::vector<int32_t>(kv.view().page_table, kv.view().page_table + slots * view.max_pages));
    view.key = Mirror(kv.key());
    view.value = Mirror(kv.value());
    return view;
  }
  std::vector<char> CpuAttention(AttentionOp op, std::vector<char> out) {
    op.out = out.data();
    std::vector<char> workspace(CpuOps().workspace_bytes(OpCall{op}));
    op.workspace = workspace.data();
    op.workspace_bytes = workspace.size();
    const OpStatus s = CpuOps().attention(op, nullptr);
    EXPECT_TRUE(s.ok()) << s.message();
    return out;
  }
  size_t table_entries_ = 0;
};

constexpr AttentionShape kShapes[] = {
    {4, 4, 32},      {9, 3, 64},   {32, 8, 64, 100},      {8, 2, 128, -1, 20.0f},
    {16, 2, 80, 33}, {32, 1, 256}, {12, 1, 96, -1, 5.0f}, {2, 1, 8}};

TEST_F(CudaAttention, DecodeEqualsCpuAndSkipsRows) {
  Random random;
  SCOPED_TRACE(random.note());
  for (DType dtype : kAllDTypes) {
    for (const AttentionShape& shape : kShapes) {
      const int32_t rows = 5, max_pages = 40, shift = 4, capacity = max_pages << shift;
      PagedKv kv(random, dtype, rows, max_pages, shift, shape.kv_heads, shape.head_dim);
      table_entries_ = static_cast<size_t>(rows * max_pages);
      std::vector<RowMeta> meta;
      for (int32_t r = 0; r < rows; ++r) {
        const int32_t total = r == 0 ? 1 : r == 1 ? capacity : random.Int(2, capacity);
        kv.Fill(random, r, total);
        meta.push_back(r == 3 ? reference::Skipped() : RowMeta{r, 0, total - 1, total, 0, 0});
      }
      const size_t width = static_cast<size_t>(shape.q_heads * shape.head_dim);
      std::vector<float> q = random.Normals(width * rows);
      std::fill_n(q.begin() + 3 * static_cast<long>(width), width, NAN);
      const std::vector<char> before =
          reference::Encode(dtype, std::vector<float>(width * rows, 777.0f));
      AttentionOp op = {meta.data(),
                        q.data(),
                        kv.view(),
                        shape.q_heads,
                        0.125f,
                        shape.window,
                        shape.softcap,
                        nullptr,
                        nullptr,
                        0,
                        0,
                        nullptr,
                        dtype,
                        rows,
                        Phase::kDecode,
                        capacity,
                        nullptr,
                        0};
      const SinksAndBias extra(random, op);
      extra.Use(op);
      const std::vector<char> expected = CpuAttention(op, before);
      op.meta = Mirror(meta);
      op.q = Mirror(q);
      op.kv = MirrorKv(kv);
      op.out = Mirror(before);
      if (extra.used) op.head_sink = Mirror(extra.sinks), op.bias = Mirror(extra.bias);
      GiveWorkspace(op);
      SCOPED_TRACE(testing::Message()
                   << Name(dtype) << " heads " << shape.q_heads << "/" << shape.kv_heads << "x"
                   << shape.head_dim << (extra.used ? " sinks and bias" : ""));
      RunEager(op);
      const std::vector<char> eager = Get<char>(op.out, before.size());
      ExpectNear(Decode(dtype, expected), Decode(dtype, eager), Tolerance(dtype));

      Put(op.out, before);
      RunCaptured(op);
      EXPECT_EQ(Get<char>(op.out, before.size()), eager) << "captured differs from eager";

      // Alone, and under a larger bound on the length: the same bits.
      AttentionOp alone = op;
      alone.meta = op.meta + 4;
      alone.q = op.q + 4 * width;
      if (extra.used) alone.bias = op.bias + 4 * op.bias_row_stride;
      alone.rows = 1;
      alone.max_total = capacity * 50;
      GiveWorkspace(alone);
      RunEager(alone);
      const size_t row_bytes = width * SizeOf(dtype);
      EXPECT_EQ(Get<char>(op.out, row_bytes),
                std::vector<char>(eager.end() - static_cast<long>(row_bytes), eager.end()))
          << "a row alone differs from the row in a batch";
    }
  }
}

// So many rows that a block takes several splits of a row, which it does not when the row is alone.
TEST_F(CudaAttention, ManyRowsEqualCpuAndEachRowAlone) {
  Random random;
  SCOPED_TRACE(random.note());
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    for (const AttentionShape& shape :
         {AttentionShape{32, 8, 64, 150}, AttentionShape{32, 8, 128}}) {
      const int32_t rows = 40, max_pages = 10, shift = 6, capacity = max_pages << shift;
      PagedKv kv(random, dtype, rows, max_pages, shift, shape.kv_heads, shape.head_dim);
      table_entries_ = static_cast<size_t>(rows * max_pages);
      std::vector<RowMeta> meta;
      for (int32_t r = 0; r < rows; ++r) {
        const int32_t total = r == 0 ? capacity : random.Int(1, capacity);
        kv.Fill(random, r, total);
        meta.push_back({r, 0, total - 1, total, 0, 0});
      }
      const size_t width = static_cast<size_t>(shape.q_heads * shape.head_dim),
                   row_bytes = width * SizeOf(dtype);
      const std::vector<float> q = random.Normals(width * rows);
      AttentionOp op = {meta.data(),
                        q.data(),
                        kv.view(),
                        shape.q_heads,
                        0.125f,
                        shape.window,
                        shape.softcap,
                        nullptr,
                        nullptr,
                        0,
                        0,
                        nullptr,
                        dtype,
                        rows,
                        Phase::kDecode,
                        capacity,
                        nullptr,
                        0};
      const std::vector<char> expected = CpuAttention(op, std::vector<char>(row_bytes * rows));
      op.meta = Mirror(meta);
      op.q = Mirror(q);
      op.kv = MirrorKv(kv);
      op.out = Raw(expected.size());
      GiveWorkspace(op);
      SCOPED_TRACE(testing::Message() << Name(dtype) << " head_dim " << shape.head_dim);
      RunEager(op);
      const std::vector<char> all = Get<char>(op.out, expected.size());
      ExpectNear(Decode(dtype, expected), Decode(dtype, all), Tolerance(dtype));
      for (const int32_t r : {0, random.Int(1, rows - 1), random.Int(1, rows - 1)}) {
        AttentionOp alone = op;
        alone.meta = op.meta + r;
        alone.q = op.q + static_cast<size_t>(r) * width;
        alone.rows = 1;
        RunEager(alone);
        const auto from = all.begin() + static_cast<long>(static_cast<size_t>(r) * row_bytes);
        EXPECT_EQ(Get<char>(op.out, row_bytes),
                  std::vector<char>(from, from + static_cast<long>(row_bytes)))
            << "row " << r;
      }
    }
  }
}

TEST_F(CudaAttention, DecodeLongContexts) {
  Random random;
  SCOPED_TRACE(random.note());
  for (int32_t total : {4095, 4096, 4097, 9001}) {
    const int32_t max_pages = 160, shift = 6;
    PagedKv kv(random, DType::kBF16, 1, max_pages, shift, 1, 32);
    table_entries_ = max_pages;
    kv.Fill(random, 0, total);
    const std::vector<RowMeta> meta = {{0, 0, total - 1, total, 0, 0}};
    const std::vector<float> q = random.Normals(2 * 32);
    AttentionOp op = {meta.data(),
                      q.data(),
                      kv.view(),
                      2,
                      0.2f,
                      -1,
                      0.0f,
                      nullptr,
                      nullptr,
                      0,
                      0,
                      nullptr,
                      DType::kF32,
                      1,
                      Phase::kDecode,
                      max_pages << shift,
                      nullptr,
                      0};
    const std::vector<char> expected = CpuAttention(op, std::vector<char>(2 * 32 * 4));
    op.meta = Mirror(meta);
    op.q = Mirror(q);
    op.kv = MirrorKv(kv);
    op.out = Raw(expected.size());
    GiveWorkspace(op);
    RunEager(op);
    ExpectNear(Decode(DType::kF32, expected), Get<float>(op.out, 64), 1e-4);
  }
}

TEST_F(CudaAttention, PrefillEqualsCpu) {
  Random random;
  SCOPED_TRACE(random.note());
  for (DType dtype : kAllDTypes) {
    for (const AttentionShape& shape : kShapes) {
      const int32_t rows = 37, past = random.Int(0, 60), max_pages = 8, shift = 4;
      PagedKv kv(random, dtype, 3, max_pages, shift, shape.kv_heads, shape.head_dim);
      table_entries_ = static_cast<size_t>(3 * max_pages);
      kv.Fill(random, 1, past + rows);
      std::vector<RowMeta> meta;
      for (int32_t r = 0; r < rows; ++r) {
        meta.push_back(r >= 35 ? reference::Skipped()
                               : RowMeta{1, 0, past + r, past + r + 1, 0, 0});
      }
      const size_t width = static_cast<size_t>(shape.q_heads * shape.head_dim);
      const std::vector<float> q = random.Normals(width * rows);
      const std::vector<char> before =
          reference::Encode(dtype, std::vector<float>(width * rows, 777.0f));
      AttentionOp op = {meta.data(),
                        q.data(),
                        kv.view(),
                        shape.q_heads,
                        0.125f,
                        shape.window,
                        shape.softcap,
                        nullptr,
                        nullptr,
                        0,
                        0,
                        nullptr,
                        dtype,
                        rows,
                        Phase::kPrefill,
                        max_pages << shift,
                        nullptr,
                        0};
      const SinksAndBias extra(random, op);
      extra.Use(op);
      const std::vector<char> expected = CpuAttention(op, before);
      op.meta = Mirror(meta);
      op.q = Mirror(q);
      op.kv = MirrorKv(kv);
      op.out = Mirror(before);
      if (extra.used) op.head_sink = Mirror(extra.sinks), op.bias = Mirror(extra.bias);
      GiveWorkspace(op);
      SCOPED_TRACE(testing::Message() << Name(dtype) << " heads " << shape.q_heads << "/"
                                      << shape.kv_heads << "x" << shape.head_dim);
      RunEager(op);
      ExpectNear(Decode(dtype, expected), Decode(dtype, Get<char>(op.out, before.size())),
                 Tolerance(dtype));
    }
  }
}

TEST_F(CudaAttention, PrepEqualsCpuAndWritesOnlyItsTokens) {
  Random random;
  SCOPED_TRACE(random.note());
  for (DType dtype : kAllDTypes) {
    for (const AttentionShape& shape : kShapes) {
      for (const bool interleaved : {false, true}) {
        for (const int32_t rotary_dim : {0, shape.head_dim / 2 / 2 * 2, shape.head_dim}) {
          const int32_t rows = 4, max_pages = 5, shift = 3, table_rows = 64;
          PagedKv kv(random, dtype, rows, max_pages, shift, shape.kv_heads, shape.head_dim);
          table_entries_ = static_cast<size_t>(rows * max_pages);
          std::vector<RowMeta> meta;
          for (int32_t r = 0; r < rows; ++r) {
            const int32_t past = random.Int(0, (max_pages << shift) - 1);
            meta.push_back(r == 2
                               ? reference::Skipped()
                               : RowMeta{r, 0, past, past + 1, random.Int(0, table_rows - 1), 0});
          }
          const size_t heads = static_cast<size_t>(shape.q_heads + 2 * shape.kv_heads),
                       d = static_cast<size_t>(shape.head_dim);
          const std::vector<float> qkv = random.Normals(rows * heads * d);
          const std::vector<float> q_norm = random.Normals(d), k_norm = random.Normals(d);
          const std::vector<float> cos = random.Normals(table_rows * d),
                                   sin = random.Normals(table_rows * d);
          std::vector<float> q(static_cast<size_t>(rows * shape.q_heads) * d, 777.0f);
          AttentionPrepOp op = {meta.data(),   qkv.data(), q_norm.data(),
                                k_norm.data(), 1e-5f,      rotary_dim > 0 ? cos.data() : nullptr,
                                sin.data(),    rotary_dim, interleaved,
                                shape.q_heads, q.data(),   kv.view(),
                                rows};
          AttentionPrepOp gpu = op;
          gpu.meta = Mirror(meta);
          gpu.qkv = Mirror(qkv);
          gpu.q_norm = Mirror(q_norm);
          gpu.k_norm = Mirror(k_norm);
          gpu.cos = rotary_dim > 0 ? Mirror(cos) : nullptr;
          gpu.sin = Mirror(sin);
          gpu.q = Mirror(q);
          gpu.kv = MirrorKv(kv);  // before the CPU writes it
          const OpStatus s = CpuOps().attention_prep(op, nullptr);
          ASSERT_TRUE(s.ok()) << s.message();
          RunEager(gpu);
          SCOPED_TRACE(testing::Message() << Name(dtype) << " head_dim " << shape.head_dim
                                          << " rotary " << rotary_dim);
          ExpectNear(q, Get<float>(gpu.q, q.size()), 1e-5);
          // Everything but the new tokens is still NaN on both sides, which ExpectNear compares.
          const double cache_tolerance = dtype == DType::kF32 ? 1e-5 : Tolerance(dtype);
          ExpectNear(Decode(dtype, kv.key()), Decode(dtype, Get<char>(gpu.kv.key, kv.key().size())),
                     cache_tolerance);
          ExpectNear(Decode(dtype, kv.value()),
                     Decode(dtype, Get<char>(gpu.kv.value, kv.value().size())), cache_tolerance);
        }
      }
    }
  }
}

}  // namespace
}  // namespace latchd
