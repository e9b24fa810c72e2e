#include <algorithm>
#include <string>

#include "kernels/cuda/common/device.cuh"
#include "kernels/cuda/common/epilogue.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/norm.cuh"
#include "kernels/cuda/common/packed_layout.h"
#include "kernels/cuda/ops_internal.h"

// Decode matrix product over packed f16/bf16 weights: y [rows, n] = x [rows, k] W^T. Bound by the
// weight stream, so everything serves to keep it running:
// - One block of 16 warps a multiprocessor, which owns a contiguous run of 16-row tiles. The warps
//   of a block split k; a tile is one linear run of memory, each warp's part of it too.
// - Each thread copies its own 16-byte fragments through a ring in shared memory (cp.async). Only
//   the copying lane reads them back, so the ring needs no barrier and runs on across tiles.
// - The ring is filled before the wait for the previous kernel: weights do not depend on it. A block
//   leaves room for a block of the next kernel on its multiprocessor, which does the same.
// Bit-exactness: a row is one column of the B operand. Its sum has the same order whatever the
// other rows, the number of rows and the number of multiprocessors: pairs of units in order within
// a warp's part of k, then the 16 warps in order.

namespace latchd::cuda {
namespace {

constexpr int kWarps = 16;
constexpr int kThreads = kWarps * 32;
static_assert(kThreads == kNormThreads);
constexpr int kStages = 4;                           // pairs of units in flight a warp
constexpr int kRingBytes = kStages * 2 * kThreads * 16;
constexpr int kPartialBytes = kWarps * 32 * 16;      // one 16 x 8 tile of partial sums a warp
constexpr int kPartialBuffers = 2;
constexpr size_t kMaxActivationBytes = 32 * 1024;    // so that two kernels share a multiprocessor
constexpr int kActivationPad = 32;                   // elements; rows start 64 bytes apart in banks
constexpr int kMaxSharedBytes = kRingBytes + kPartialBuffers * kPartialBytes + static_cast<int>(kMaxActivationBytes);

struct DecodeParams {
  const void* weight;
  const void* x;            // f32 or T, [rows, k]
  const float* norm_weight;
  float norm_eps;
  bool x_is_float;
  int32_t k;
  int32_t row_tiles;
  EpilogueParams epilogue;
};

__device__ __forceinline__ int ActivationStride(int k) {
  return static_cast<int>(ColPairs(k)) * kPairCols + kActivationPad;
}

// x -> normalised T in shared memory, [rows][stride], zero beyond k. Ends with a barrier.
template <typename T>
__device__ void StageActivations(const DecodeParams& p, T* staged, float* squares) {
  const int k = p.k, rows = p.epilogue.rows, stride = ActivationStride(k);
  const int padded = stride - kActivationPad;
  if (!p.x_is_float) {
    const int words = padded / 8;  // 16-byte pieces; k is a multiple of 8
    for (int i = threadIdx.x; i < rows * words; i += kThreads) {
      const int r = i / words, c = i % words * 8;
      uint4 v = make_uint4(0, 0, 0, 0);
      if (c < k) v = __ldcg(reinterpret_cast<const uint4*>(static_cast<const T*>(p.x) + static_cast<size_t>(r) * k + c));
      *reinterpret_cast<uint4*>(staged + r * stride + c) = v;
    }
    __syncthreads();
    return;
  }
  const float* x = static_cast<const float*>(p.x);
  if (p.norm_weight != nullptr) {
    for (int r = 0; r < rows; ++r) {
      const float sum = WarpSquares(x + static_cast<size_t>(r) * k, k);
      if (threadIdx.x % 32 == 0) squares[r * kNormWarps + threadIdx.x / 32] = sum;
    }
    __syncthreads();
  }
  for (int r = 0; r < rows; ++r) {
    const float inverse = p.norm_weight != nullptr ? InverseRms(squares + r * kNormWarps, k, p.norm_eps) : 1.0f;
    for (int c = threadIdx.x * 4; c < padded; c += kThreads * 4) {
      float4 v = make_float4(0, 0, 0, 0);
      if (c < k) {  // k is a multiple of 8
        v = __ldcg(reinterpret_cast<const float4*>(x + static_cast<size_t>(r) * k + c));
        if (p.norm_weight != nullptr) {
          const float4 g = *reinterpret_cast<const float4*>(p.norm_weight + c);
          v = make_float4(v.x * inverse * g.x, v.y * inverse * g.y, v.z * inverse * g.z, v.w * inverse * g.w);
        }
      }
      *reinterpret_cast<uint2*>(staged + r * stride + c) = make_uint2(PackPair(v.x, v.y, T()), PackPair(v.z, v.w, T()));
    }
  }
  __syncthreads();
}

// Sums the warps' partial sums of one 16 x 8 tile in order and stores it. One warp.
__device__ void FinishTile(const EpilogueParams& e, const float4* partial, int64_t row_tile, int column0, int lane) {
  float4 sum = partial[lane];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) {
    const float4 v = partial[w * 32 + lane];
    sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
  }
  const int g = lane / 4, t = lane % 4;
  const int64_t o = row_tile * kTileRows + g;
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const int r = column0 + 2 * t + c;
    if (r >= e.rows || e.meta[r].slot < 0) continue;
    const float low = c == 0 ? sum.x : sum.y, high = c == 0 ? sum.z : sum.w;
    if (e.kind == Epilogue::kSiluMul) {
      StoreGated(e, r, row_tile * kTileRows + g, low, high);
    } else {
      StoreOutput(e, r, o, low);
      StoreOutput(e, r, o + 8, high);
    }
  }
}

// kColumnTiles: groups of 8 rows a pass over the weights. kStaged: activations come from shared
// memory (few rows); else straight from global memory, as T, because they would not fit.
template <typename T, int kColumnTiles, bool kStaged>
__global__ void __launch_bounds__(kThreads, kStaged ? 2 : 1) LinearDecodeKernel(const __grid_constant__ DecodeParams p) {
  extern __shared__ __align__(128) unsigned char shared[];
  float4* partials = reinterpret_cast<float4*>(shared + kRingBytes);
  T* staged = reinterpret_cast<T*>(shared + kRingBytes + kPartialBuffers * kPartialBytes);
  __shared__ float squares[8 * kNormWarps];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int rows = p.epilogue.rows, k = p.k;

  const int first_tile = static_cast<int>(static_cast<int64_t>(p.row_tiles) * blockIdx.x / gridDim.x);
  const int last_tile = static_cast<int>(static_cast<int64_t>(p.row_tiles) * (blockIdx.x + 1) / gridDim.x);
  const int pairs = static_cast<int>(ColPairs(k));
  const int first_pair = pairs * warp / kWarps, own_pairs = pairs * (warp + 1) / kWarps - first_pair;

  // The stream of this lane: own_pairs pairs of 16-byte fragments a tile, then a jump to the next.
  const unsigned char* source = static_cast<const unsigned char*>(p.weight) +
                                (static_cast<size_t>(first_tile) * pairs + first_pair) * (kPairElements * 2) + lane * 16;
  const size_t jump = static_cast<size_t>(pairs - own_pairs) * (kPairElements * 2);
  int to_issue = (last_tile - first_tile) * own_pairs, issued_in_tile = 0;
  const uint32_t ring = SharedAddress(shared) + threadIdx.x * 16;
  auto issue = [&](int stage) {
    if (to_issue > 0) {
      const uint32_t slot = ring + stage * (2 * kThreads * 16);
      CpAsync16(slot, source);
      CpAsync16(slot + kThreads * 16, source + kUnitElements * 2);
      source += kPairElements * 2;
      if (++issued_in_tile == own_pairs) {
        issued_in_tile = 0;
        source += jump;
      }
      --to_issue;
    }
    CpAsyncCommit();
  };
#pragma unroll
  for (int s = 0; s < kStages; ++s) issue(s);

  WaitForPrevious();
  AllowNext();
  if constexpr (kStaged) StageActivations<T>(p, staged, squares);

  int stage = 0, buffer = 0;
  for (int tile = first_tile; tile < last_tile; ++tile) {
    float sums[kColumnTiles][4] = {};
    const T* x = kStaged ? staged + g * ActivationStride(k) : static_cast<const T*>(p.x) + static_cast<size_t>(g) * k;
    const int x_step = kStaged ? 0 : 8 * k;  // elements from one column tile to the next
#pragma unroll(kColumnTiles == 8 ? 1 : 2)
    for (int i = 0; i < own_pairs; ++i) {
      const int column = (first_pair + i) * kPairCols + t * 8;
      uint4 b[kColumnTiles];
#pragma unroll
      for (int c = 0; c < kColumnTiles; ++c) {
        b[c] = make_uint4(0, 0, 0, 0);
        if (c * 8 + g < rows && (kStaged || column < k)) {
          const uint4* from = reinterpret_cast<const uint4*>(x + static_cast<size_t>(c) * x_step + column);
          b[c] = kStaged ? *from : __ldcg(from);
        }
      }
      CpAsyncWait<kStages - 1>();
      const uint32_t slot = ring + stage * (2 * kThreads * 16);
      const uint4 a0 = LoadShared16(slot), a1 = LoadShared16(slot + kThreads * 16);
#pragma unroll
      for (int c = 0; c < kColumnTiles; ++c) {
        Mma(sums[c], a0, b[c].x, b[c].y, T());
        Mma(sums[c], a1, b[c].z, b[c].w, T());
      }
      issue(stage);
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    // Two buffers, one barrier a tile: whoever reads buffer b passes the next barrier before anybody
    // writes b again.
#pragma unroll
    for (int c = 0; c < kColumnTiles; ++c) {
      float4* partial = partials + buffer * (kWarps * 32);
      partial[warp * 32 + lane] = make_float4(sums[c][0], sums[c][1], sums[c][2], sums[c][3]);
      __syncthreads();
      if (warp == (tile * kColumnTiles + c) % kWarps) FinishTile(p.epilogue, partial, tile, c * 8, lane);
      buffer ^= 1;
    }
  }
}

template <typename T, int kColumnTiles, bool kStaged>
OpStatus LaunchDecode(const DecodeParams& p, size_t shared_bytes, OpStream stream) {
  const int blocks = std::min(SmCount(), p.row_tiles);
  return Launch("linear decode", LinearDecodeKernel<T, kColumnTiles, kStaged>, dim3(static_cast<unsigned>(blocks)),
                dim3(kThreads), shared_bytes, stream, LaunchOrder::kAfterPrevious, p);
}

size_t StagedBytes(const LinearOp& op) {
  return static_cast<size_t>(op.rows) * (static_cast<size_t>(ColPairs(op.weight.k)) * kPairCols + kActivationPad) * 2;
}
bool FitsShared(const LinearOp& op) { return op.rows <= 8 && StagedBytes(op) <= kMaxActivationBytes; }
bool NeedsConversion(const LinearOp& op) { return !FitsShared(op) && op.x_dtype == DType::kF32; }

template <typename T>
OpStatus Run(const LinearOp& op, OpStream stream) {
  DecodeParams p = {op.weight.data, op.x, op.norm_weight, op.norm_eps, op.x_dtype == DType::kF32,
                    static_cast<int32_t>(op.weight.k), static_cast<int32_t>(RowTiles(op.weight.n)), MakeEpilogue(op)};
  constexpr size_t kFixed = kRingBytes + kPartialBuffers * kPartialBytes;
  if (FitsShared(op)) return LaunchDecode<T, 1, true>(p, kFixed + StagedBytes(op), stream);
  if (NeedsConversion(op)) {
    if (OpStatus s = NormRows(op, op.workspace, op.weight.dtype, stream); !s.ok()) return s;
    p.x = op.workspace;
    p.x_is_float = false;
  }
  // More than 64 rows: several passes. Each row's sum is the same in any of these variants.
  for (int32_t begin = 0; begin < op.rows; begin += 64) {
    const int32_t rows = std::min(64, op.rows - begin);
    DecodeParams part = p;
    const size_t y_width = static_cast<size_t>(op.epilogue == Epilogue::kSiluMul ? op.weight.n / 2 : op.weight.n);
    part.x = static_cast<const T*>(p.x) + static_cast<size_t>(begin) * op.weight.k;
    part.epilogue.meta += begin;
    part.epilogue.rows = rows;
    part.epilogue.y = static_cast<char*>(op.y) + begin * y_width * SizeOf(op.y_dtype);
    OpStatus s = rows <= 8    ? LaunchDecode<T, 1, false>(part, kFixed, stream)
                 : rows <= 16 ? LaunchDecode<T, 2, false>(part, kFixed, stream)
                 : rows <= 32 ? LaunchDecode<T, 4, false>(part, kFixed, stream)
                              : LaunchDecode<T, 8, false>(part, kFixed, stream);
    if (!s.ok()) return s;
  }
  return OpStatus::Ok();
}

template <typename T>
OpStatus PrepareAll() {
  for (const OpStatus& s : {Prepare("linear decode staged", LinearDecodeKernel<T, 1, true>, kMaxSharedBytes),
                            Prepare("linear decode 8", LinearDecodeKernel<T, 1, false>, kMaxSharedBytes),
                            Prepare("linear decode 16", LinearDecodeKernel<T, 2, false>, kMaxSharedBytes),
                            Prepare("linear decode 32", LinearDecodeKernel<T, 4, false>, kMaxSharedBytes),
                            Prepare("linear decode 64", LinearDecodeKernel<T, 8, false>, kMaxSharedBytes)}) {
    if (!s.ok()) return s;
  }
  return OpStatus::Ok();
}

}  // namespace

size_t LinearDecodeWorkspaceBytes(const LinearOp& op) {
  const size_t values = static_cast<size_t>(op.rows) * static_cast<size_t>(op.weight.k);
  if (op.weight.dtype == DType::kF32) return op.norm_weight != nullptr ? values * sizeof(float) : 0;
  return NeedsConversion(op) ? values * 2 : 0;
}

OpStatus LinearDecode(const LinearOp& op, OpStream stream) {
  if (op.weight.k % 8 != 0) {
    return Unsupported("linear: k of a 16-bit weight must be a multiple of 8, got " + std::to_string(op.weight.k));
  }
  if (op.x_dtype != DType::kF32 && (op.x_dtype != op.weight.dtype || op.norm_weight != nullptr)) {
    return Invalid("linear: x must be f32, or " + std::string(Name(op.weight.dtype)) + " without a norm, got " +
                   std::string(Name(op.x_dtype)));
  }
  if (const size_t need = LinearDecodeWorkspaceBytes(op); need > op.workspace_bytes) {
    return WorkspaceTooSmall("linear", need, op.workspace_bytes);
  }
  return op.weight.dtype == DType::kF16 ? Run<__half>(op, stream) : Run<__nv_bfloat16>(op, stream);
}

OpStatus InitLinearDecode() {
  if (OpStatus s = PrepareAll<__half>(); !s.ok()) return s;
  return PrepareAll<__nv_bfloat16>();
}

}  // namespace latchd::cuda
