#include "kernels/api/convert.h"
#include "kernels/cpu/linear_internal.h"
#include "kernels/cpu/ops_internal.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vectors.h"

namespace latchd::cpu {
namespace {

// A chunk of this many rows or fewer is cheaper as matrix-vector products than with converted
// weights.
constexpr int64_t kFewRows = 8;

// These are mistakes of ours, not of a client: shapes come from a model that was checked at load.
OpStatus Check(const LinearOp& op) {
  if (op.weight.n <= 0 || op.weight.k <= 0) {
    return Invalid("linear: weight shape [" + std::to_string(op.weight.n) + ", " +
                   std::to_string(op.weight.k) + "] must be positive");
  }
  if (op.epilogue == Epilogue::kSiluMul && op.weight.n % kBlockColumns != 0) {
    return Invalid("linear: kSiluMul needs n to be a multiple of 16, got " +
                   std::to_string(op.weight.n));
  }
  if (op.epilogue == Epilogue::kResidual && op.y_dtype != DType::kF32) {
    return Invalid("linear: kResidual adds to f32, got " + std::string(Name(op.y_dtype)));
  }
  return OpStatus::Ok();
}

// The workspace: x [rows, k], the indices of the live rows, then the prefill scratch of each
// thread.
size_t InputBytes(const LinearOp& op) {
  return Align64(static_cast<size_t>(op.rows) * static_cast<size_t>(op.weight.k) * sizeof(float));
}
size_t LiveBytes(const LinearOp& op) {
  return Align64(static_cast<size_t>(op.rows) * sizeof(int32_t));
}
size_t ScratchBytes(const LinearOp& op) {
  return Align64(static_cast<size_t>(PrefillScratchFloats(op)) * sizeof(float));
}

bool UsesMatrixProduct(const LinearOp& op) {
  return op.phase == Phase::kPrefill && op.rows > kFewRows;
}

}  // namespace

size_t LinearWorkspaceBytes(const LinearOp& op) {
  size_t bytes = InputBytes(op) + LiveBytes(op);
  if (UsesMatrixProduct(op)) bytes += static_cast<size_t>(MaxThreads()) * ScratchBytes(op);
  return bytes;
}

OpStatus Linear(const LinearOp& op, OpStream) {
  if (OpStatus status = Check(op); !status.ok()) return status;
  const size_t fixed = InputBytes(op) + LiveBytes(op);
  const size_t needed = fixed + (UsesMatrixProduct(op) ? ScratchBytes(op) : 0);
  if (op.workspace_bytes < needed) return WorkspaceTooSmall("linear", needed, op.workspace_bytes);
  auto* x = static_cast<float*>(op.workspace);
  auto* live = reinterpret_cast<int32_t*>(static_cast<char*>(op.workspace) + InputBytes(op));

  // Skipped rows are left out here, so that nothing below can read or write them.
  int64_t live_count = 0;
  for (int32_t r = 0; r < op.rows; ++r) {
    if (op.meta[r].slot >= 0) live[live_count++] = r;
  }
  if (live_count == 0) return OpStatus::Ok();
  const int64_t k = op.weight.k;
  // Once for all threads: for one row it takes a fraction of a microsecond, less than a barrier.
  ParallelRanges(live_count, live_count * k * 4, MaxThreads(),
                 [&](int64_t begin, int64_t end, int) {
                   for (int64_t i = begin; i < end; ++i) LoadInput(op, live[i], x + i * k);
                 });

  if (!UsesMatrixProduct(op)) {
    LinearDecode(op, live, live_count, x);
    return OpStatus::Ok();
  }
  const size_t slots = (op.workspace_bytes - fixed) / ScratchBytes(op);
  const int threads = static_cast<int>(std::min<size_t>(slots, static_cast<size_t>(MaxThreads())));
  LinearPrefill(op, live, live_count, x,
                reinterpret_cast<float*>(static_cast<char*>(op.workspace) + fixed), threads);
  return OpStatus::Ok();
}

// Threads share out blocks of 16 weight rows, each thread a contiguous range: memory is the limit,
// and one long stream a thread is what reads fastest. Within a block all rows pass over weights
// that are in the L1 cache by then.
void LinearDecode(const LinearOp& op, const int32_t* live, int64_t live_count, float* x) {
  const int64_t n = op.weight.n;
  const int64_t k = op.weight.k;
  const int64_t blocks = (n + kBlockColumns - 1) / kBlockColumns;
  const size_t row_bytes = static_cast<size_t>(k) * SizeOf(op.weight.dtype);
  const char* weights = static_cast<const char*>(op.weight.data);
  const int64_t bytes = n * static_cast<int64_t>(row_bytes);
  ParallelRanges(blocks, bytes, MaxThreads(), [&](int64_t first, int64_t last, int) {
    alignas(64) float products[kRowGroup * kBlockColumns];
    for (int64_t block = first; block < last; ++block) {
      const int64_t begin = block * kBlockColumns;
      const int64_t columns = std::min(kBlockColumns, n - begin);
      for (int64_t r = 0; r < live_count; r += kRowGroup) {
        const int64_t rows = std::min(kRowGroup, live_count - r);
        Dot(op.weight.dtype, x + r * k, k, rows, weights + static_cast<size_t>(begin) * row_bytes,
            k, columns, k, products, kBlockColumns);
        for (int64_t i = 0; i < rows; ++i) {
          ApplyEpilogue(op, live[r + i], begin, columns, products + i * kBlockColumns);
        }
      }
    }
  });
}

void ApplyEpilogue(const LinearOp& op, int64_t row, int64_t begin, int64_t columns, float* z) {
  if (op.bias != nullptr) {
    for (int64_t j = 0; j < columns; ++j) z[j] += op.bias[begin + j];
  }
  int64_t width = op.weight.n;
  if (op.epilogue == Epilogue::kSiluMul) {
    SiluMul(z, columns);
    width /= 2;
    begin /= 2;
    columns /= 2;
  }
  const size_t at =
      static_cast<size_t>(row) * static_cast<size_t>(width) + static_cast<size_t>(begin);
  if (op.epilogue == Epilogue::kResidual) {
    float* y = static_cast<float*>(op.y) + at;
    for (int64_t j = 0; j < columns; ++j) y[j] += z[j];
    return;
  }
  ConvertFromF32(op.y_dtype, z, static_cast<char*>(op.y) + at * SizeOf(op.y_dtype),
                 static_cast<size_t>(columns));
}

}  // namespace latchd::cpu
