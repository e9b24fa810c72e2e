#include "tests/kernels/cuda/cuda_fixture.h"

namespace latchd {
namespace {

using reference::Encode;
using reference::Random;

constexpr float kCanary = 12345.0f;

// One linear op with random data on both backends.
struct LinearData {
  int64_t n, k;
  int32_t rows;
  DType dtype, x_dtype, y_dtype;
  Epilogue epilogue;
  std::vector<char> weight, x, y;
  std::vector<float> norm, bias;
  std::vector<RowMeta> meta;

  LinearData(Random& random, int64_t n_in, int64_t k_in, int32_t rows_in, DType dtype_in,
             DType x_in, Epilogue e, DType y_in)
      : n(n_in),
        k(k_in),
        rows(rows_in),
        dtype(dtype_in),
        x_dtype(x_in),
        y_dtype(y_in),
        epilogue(e) {
    weight = Encode(dtype, random.Normals(static_cast<size_t>(n * k), 0.1f));
    std::vector<float> values = random.Normals(static_cast<size_t>(rows * k));
    std::vector<float> before(static_cast<size_t>(rows) * y_width(), kCanary);
    for (int32_t r = 0; r < rows; ++r) {
      const bool live = rows == 1 || !random.Chance(0.2);
      meta.push_back(live ? RowMeta{r, 0, 0, 1, 0, 0} : reference::Skipped());
      for (int64_t i = 0; i < k; ++i) {
        if (!live) values[static_cast<size_t>(r * k + i)] = NAN;
      }
      if (epilogue == Epilogue::kResidual) {
        for (size_t i = 0; i < y_width(); ++i)
          before[static_cast<size_t>(r) * y_width() + i] = random.Normal();
      }
    }
    x = Encode(x_dtype, values);
    y = Encode(y_dtype, before);
    norm = random.Normals(static_cast<size_t>(k));
    bias = random.Normals(static_cast<size_t>(n));
  }
  size_t y_width() const { return static_cast<size_t>(epilogue == Epilogue::kSiluMul ? n / 2 : n); }
};

class CudaLinear : public CudaTest {
 protected:
  LinearOp DeviceOp(const LinearData& d, bool with_norm, bool with_bias, Phase phase) {
    void* packed = Raw(device().ops().packed_bytes(d.dtype, d.n, d.k));
    RunEager(PackOp{Mirror(d.weight), packed, d.dtype, d.n, d.k, 0, d.n});
    LinearOp op = {Mirror(d.meta),
                   Mirror(d.x),
                   d.x_dtype,
                   with_norm ? Mirror(d.norm) : nullptr,
                   1e-5f,
                   {packed, d.dtype, d.n, d.k},
                   with_bias ? Mirror(d.bias) : nullptr,
                   d.epilogue,
                   Mirror(d.y),
                   d.y_dtype,
                   d.rows,
                   phase,
                   nullptr,
                   0};
    GiveWorkspace(op);
    return op;
  }
  std::vector<float> Cpu(LinearData d, bool with_norm, bool with_bias, Phase phase) {
    LinearOp op = {d.meta.data(),
                   d.x.data(),
                   d.x_dtype,
                   with_norm ? d.norm.data() : nullptr,
                   1e-5f,
                   {d.weight.data(), d.dtype, d.n, d.k},
                   with_bias ? d.bias.data() : nullptr,
                   d.epilogue,
                   d.y.data(),
                   d.y_dtype,
                   d.rows,
                   phase,
                   nullptr,
                   0};
    std::vector<char> workspace(CpuOps().workspace_bytes(OpCall{op}));
    op.workspace = workspace.data();
    op.workspace_bytes = workspace.size();
    const OpStatus s = CpuOps().linear(op, nullptr);
    EXPECT_TRUE(s.ok()) << s.message();
    return Decode(d.y_dtype, d.y);
  }
  // GPU against CPU; rows that are skipped must keep their bytes.
  void Check(const LinearData& d, bool with_norm, bool with_bias, Phase phase) {
    const LinearOp op = DeviceOp(d, with_norm, with_bias, phase);
    // A plain sum of k products of N(0, 0.1) and N(0, 1): its standard deviation.
    const double least_scale =
        d.epilogue == Epilogue::kStore ? 0.1 * std::sqrt(static_cast<double>(d.k)) : 1e-6;
    RunEager(op);
    const std::vector<char> bytes = Get<char>(op.y, d.y.size());
    ExpectNear(Cpu(d, with_norm, with_bias, phase), Decode(d.y_dtype, bytes), Tolerance(d.dtype),
               least_scale);
    const size_t row_bytes = d.y_width() * SizeOf(d.y_dtype);
    for (size_t r = 0; r < static_cast<size_t>(d.rows); ++r) {
      if (d.meta[r].slot >= 0) continue;
      EXPECT_EQ(std::memcmp(bytes.data() + r * row_bytes, d.y.data() + r * row_bytes, row_bytes), 0)
          << "row " << r;
    }
  }
};

TEST_F(CudaLinear, DecodeEqualsCpu) {
  Random random;
  SCOPED_TRACE(random.note());
  for (DType dtype : kAllDTypes) {
    for (int32_t rows : {1, 2, 3, 8, 9, 17, 33, 65}) {
      for (const auto& [n, k] :
           {std::pair<int64_t, int64_t>{48, 64}, {960, 576}, {112, 1536}, {272, 8192}}) {
        SCOPED_TRACE(testing::Message()
                     << Name(dtype) << " rows " << rows << " [" << n << ", " << k << "]");
        Check(LinearData(random, n, k, rows, dtype, DType::kF32, Epilogue::kStore, DType::kF32),
              true, true, Phase::kDecode);
        Check(LinearData(random, n, k, rows, dtype, dtype, Epilogue::kResidual, DType::kF32), false,
              false, Phase::kDecode);
        Check(LinearData(random, n, k, rows, dtype, DType::kF32, Epilogue::kSiluMul, dtype), true,
              false, Phase::kDecode);
      }
    }
  }
}

TEST_F(CudaLinear, OddShapes) {
  Random random;
  SCOPED_TRACE(random.note());
  for (DType dtype : kAllDTypes) {
    for (int32_t rows : {1, 5, 12}) {
      SCOPED_TRACE(testing::Message() << Name(dtype) << " rows " << rows);
      Check(LinearData(random, 1, 8, rows, dtype, DType::kF32, Epilogue::kStore, DType::kF32),
            false, false, Phase::kDecode);
      Check(LinearData(random, 37, 40, rows, dtype, DType::kF32, Epilogue::kStore, DType::kF32),
            true, false, Phase::kDecode);
      Check(LinearData(random, 5003, 72, rows, dtype, DType::kF32, Epilogue::kStore, DType::kF32),
            true, true, Phase::kDecode);
    }
  }
}

TEST_F(CudaLinear, PrefillEqualsCpu) {
  Random random;
  SCOPED_TRACE(random.note());
  for (DType dtype : kAllDTypes) {
    for (int32_t rows : {1, 7, 64, 130}) {
      for (const auto& [n, k] : {std::pair<int64_t, int64_t>{48, 64}, {960, 576}, {1008, 1536}}) {
        SCOPED_TRACE(testing::Message()
                     << Name(dtype) << " rows " << rows << " [" << n << ", " << k << "]");
        Check(LinearData(random, n, k, rows, dtype, DType::kF32, Epilogue::kStore, DType::kF32),
              true, true, Phase::kPrefill);
        Check(LinearData(random, n, k, rows, dtype, dtype, Epilogue::kResidual, DType::kF32), false,
              false, Phase::kPrefill);
        Check(LinearData(random, n, k, rows, dtype, DType::kF32, Epilogue::kSiluMul, dtype), true,
              false, Phase::kPrefill);
      }
    }
  }
}

// The promise that batching and buckets never change a session's tokens.
TEST_F(CudaLinear, RowAloneEqualsRowInAnyBatchBitForBit) {
  Random random;
  SCOPED_TRACE(random.note());
  for (DType dtype : kAllDTypes) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{528, 576}, {96, 8192}}) {
      for (const bool normed : {true, false}) {
        const DType x_dtype = normed ? DType::kF32 : dtype;
        LinearData all(random, n, k, 64, dtype, x_dtype, Epilogue::kStore, DType::kF32);
        for (RowMeta& m : all.meta) m = {0, 0, 0, 1, 0, 0};
        all.x = Encode(x_dtype, random.Normals(static_cast<size_t>(64 * k)));
        LinearOp op = DeviceOp(all, normed, true, Phase::kDecode);
        RunEager(op);
        const std::vector<float> whole = Get<float>(op.y, static_cast<size_t>(64 * n));
        const char* x = static_cast<const char*>(op.x);
        for (int32_t rows : {1, 2, 4, 8, 16, 32}) {
          const int32_t first = random.Int(0, 64 - rows);
          op.rows = rows;
          op.x = x + static_cast<size_t>(first * k) * SizeOf(x_dtype);
          RunEager(op);
          const std::vector<float> part = Get<float>(op.y, static_cast<size_t>(rows * n));
          EXPECT_EQ(std::memcmp(part.data(), whole.data() + first * n, part.size() * sizeof(float)),
                    0)
              << Name(dtype) << " rows " << rows << " k " << k << " norm " << normed;
        }
      }
    }
  }
}

TEST_F(CudaLinear, CapturedEqualsEagerBitForBit) {
  Random random;
  SCOPED_TRACE(random.note());
  for (DType dtype : kAllDTypes) {
    for (int32_t rows : {1, 16}) {
      const LinearData d(random, 960, 576, rows, dtype, DType::kF32, Epilogue::kSiluMul, dtype);
      const LinearOp op = DeviceOp(d, true, true, Phase::kDecode);
      RunEager(op);
      const std::vector<char> eager = Get<char>(op.y, d.y.size());
      Put(op.y, d.y);
      RunCaptured(op);
      EXPECT_EQ(Get<char>(op.y, d.y.size()), eager) << Name(dtype) << " rows " << rows;
    }
  }
}

// A weight may arrive in pieces of rows.
TEST_F(CudaLinear, PackInPiecesEqualsPackWhole) {
  Random random;
  SCOPED_TRACE(random.note());
  const int64_t n = 100, k = 72;
  for (DType dtype : kAllDTypes) {
    const std::vector<char> weight = Encode(dtype, random.Normals(static_cast<size_t>(n * k)));
    const size_t bytes = device().ops().packed_bytes(dtype, n, k);
    char* source = Mirror(weight);
    void* whole = Raw(bytes);
    void* pieces = Raw(bytes);
    RunEager(PackOp{source, whole, dtype, n, k, 0, n});
    RunEager(PackOp{source + 48 * k * static_cast<int64_t>(SizeOf(dtype)), pieces, dtype, n, k, 48,
                    n - 48});
    RunEager(PackOp{source, pieces, dtype, n, k, 0, 48});
    EXPECT_EQ(Get<char>(whole, bytes), Get<char>(pieces, bytes)) << Name(dtype);
  }
}

TEST_F(CudaLinear, SmallWorkspaceIsANamedError) {
  Random random;
  const LinearData d(random, 64, 576, 64, DType::kBF16, DType::kF32, Epilogue::kStore, DType::kF32);
  LinearOp op = DeviceOp(d, true, false, Phase::kDecode);
  ASSERT_GT(op.workspace_bytes, 0u);
  op.workspace_bytes -= 1;
  const absl::Status s = device().Run(OpCall{op});
  EXPECT_EQ(s.code(), absl::StatusCode::kFailedPrecondition) << s;
}

}  // namespace
}  // namespace latchd
