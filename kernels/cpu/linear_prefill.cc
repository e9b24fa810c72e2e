#include <cblas.h>

#include "kernels/api/convert.h"
#include "kernels/cpu/blas_threads.h"
#include "kernels/cpu/linear_internal.h"
#include "kernels/cpu/ops_internal.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vectors.h"

namespace latchd::cpu {
namespace {

// Weight rows converted and multiplied at once. The product must be large enough to pay for
// OpenBLAS packing x again for each block, and the converted block small enough to stay in the L2
// cache.
int64_t ColumnsPerProduct(const LinearOp& op) {
  constexpr int64_t kBlockFloats = 256 << 10;
  const int64_t columns = kBlockFloats / op.weight.k / kBlockColumns * kBlockColumns;
  return std::min(std::clamp<int64_t>(columns, 64, 192),
                  (op.weight.n + kBlockColumns - 1) / kBlockColumns * kBlockColumns);
}

}  // namespace

int64_t PrefillScratchFloats(const LinearOp& op) {
  const int64_t columns = ColumnsPerProduct(op);
  return columns * op.weight.k + columns * op.rows;
}

// Each item converts a block of weight rows to f32 and multiplies all live rows with it, into the
// thread's scratch; the epilogue then writes to the rows of y that are live. Blocks are cut by
// shape alone, so threads do not change results.
void LinearPrefill(const LinearOp& op, const int32_t* live, int64_t live_count, const float* x,
                   float* scratch, int threads) {
  UseSingleThreadedBlas();
  const int64_t n = op.weight.n;
  const int64_t k = op.weight.k;
  const int64_t step = ColumnsPerProduct(op);
  const size_t scratch_floats =
      Align64(static_cast<size_t>(PrefillScratchFloats(op)) * sizeof(float)) / sizeof(float);
  ParallelItems((n + step - 1) / step, kWorthwhileBytes, threads, [&](int64_t item, int thread) {
    const int64_t begin = item * step;
    const int64_t columns = std::min(step, n - begin);
    float* converted = scratch + static_cast<size_t>(thread) * scratch_floats;
    float* products = converted + step * k;
    const char* weights = static_cast<const char*>(op.weight.data) +
                          static_cast<size_t>(begin * k) * SizeOf(op.weight.dtype);
    const float* block = reinterpret_cast<const float*>(weights);
    if (op.weight.dtype != DType::kF32) {
      Widen(op.weight.dtype, weights, converted, static_cast<size_t>(columns * k));
      block = converted;
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<int>(live_count),
                static_cast<int>(columns), static_cast<int>(k), 1.0f, x, static_cast<int>(k), block,
                static_cast<int>(k), 0.0f, products, static_cast<int>(columns));
    for (int64_t i = 0; i < live_count; ++i) {
      ApplyEpilogue(op, live[i], begin, columns, products + i * columns);
    }
  });
}

}  // namespace latchd::cpu
