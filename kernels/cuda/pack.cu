#include <string>

#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/packed_layout.h"
#include "kernels/cuda/ops_internal.h"

namespace latchd::cuda {
namespace {

// One thread an 8-element lane fragment of the packed form: writes are coalesced 16-byte stores;
// the reads of a warp cover whole 64-byte pieces of 16 rows. f16 and bf16 are moved as bits.
__global__ void PackKernel(const uint16_t* source, uint16_t* destination, int64_t n, int64_t k,
                           int64_t row_begin, int64_t rows, int64_t fragments) {
  const int64_t pairs = ColPairs(k);
  const int64_t first_fragment = row_begin / kTileRows * pairs * (kPairElements / 8);
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < fragments;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const int lane = static_cast<int>(i % 32), unit = static_cast<int>(i / 32 % 2);
    const int64_t pair = i / 64;
    const int64_t row0 = pair / pairs * kTileRows + lane / 4;  // relative to row_begin
    const int64_t col0 = pair % pairs * kPairCols + lane % 4 * 8 + unit * 4;
    uint16_t words[8];
#pragma unroll
    for (int e = 0; e < 8; ++e) {  // element e is register e / 2: row bit 0, column-half bit 1
      const int64_t row = row0 + (e / 2) % 2 * 8;
      const int64_t col = col0 + (e / 4) * 2 + e % 2;
      words[e] = row < rows && col < k ? source[row * k + col] : uint16_t{0};
    }
    uint4 out;
    out.x = words[0] | static_cast<uint32_t>(words[1]) << 16;
    out.y = words[2] | static_cast<uint32_t>(words[3]) << 16;
    out.z = words[4] | static_cast<uint32_t>(words[5]) << 16;
    out.w = words[6] | static_cast<uint32_t>(words[7]) << 16;
    reinterpret_cast<uint4*>(destination)[first_fragment + i] = out;
  }
}

}  // namespace

OpStatus Pack(const PackOp& op, OpStream stream) {
  if (op.row_begin < 0 || op.rows < 0 || op.row_begin + op.rows > op.n || op.k <= 0) {
    return Invalid("pack: rows [" + std::to_string(op.row_begin) + ", " +
                   std::to_string(op.row_begin + op.rows) + ") are not inside [0, " +
                   std::to_string(op.n) + ")");
  }
  if (op.rows == 0) return OpStatus::Ok();
  if (op.dtype == DType::kF32) {
    return FromCuda(
        cudaMemcpyAsync(static_cast<float*>(op.destination) + op.row_begin * op.k, op.source,
                        static_cast<size_t>(op.rows) * static_cast<size_t>(op.k) * sizeof(float),
                        cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(stream)),
        "pack: cudaMemcpyAsync");
  }
  if (op.row_begin % kTileRows != 0 ||
      (op.rows % kTileRows != 0 && op.row_begin + op.rows != op.n)) {
    return Invalid("pack: rows must start and end at multiples of 16, got [" +
                   std::to_string(op.row_begin) + ", " + std::to_string(op.row_begin + op.rows) +
                   ") of " + std::to_string(op.n));
  }
  const int64_t fragments = static_cast<int64_t>(PackedElements(op.rows, op.k)) / 8;
  const int64_t blocks = std::min<int64_t>((fragments + 255) / 256, 8 * SmCount());
  return Launch("pack", PackKernel, dim3(static_cast<unsigned>(blocks)), dim3(256), 0, stream,
                LaunchOrder::kOrdered, static_cast<const uint16_t*>(op.source),
                static_cast<uint16_t*>(op.destination), op.n, op.k, op.row_begin, op.rows,
                fragments);
}

OpStatus InitPack() { return Prepare("pack", PackKernel); }

}  // namespace latchd::cuda
