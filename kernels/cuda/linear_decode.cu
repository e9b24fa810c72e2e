#include <algorithm>
#include <string>

#include "kernels/cuda/common/device.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/norm.cuh"
#include "kernels/cuda/linear_decode.cuh"

// Decode matrix product over packed f16/bf16 weights: y [rows, n] = x [rows, k] W^T. Bound by the
// weight stream, so everything serves to keep it running:
// - One block of 16 warps a multiprocessor, which owns a contiguous run of 16-row tiles. The warps
//   of a block split k; a tile is one linear run of memory, each warp's part of it too.
// - Each thread copies its own 16-byte fragments through a ring in shared memory (cp.async). Only
//   the copying lane reads them back, so the ring needs no barrier and runs on across tiles.
// - The ring is filled before the wait for the previous kernel: weights do not depend on it. A
// block
//   leaves room for a block of the next kernel on its multiprocessor, which does the same.
// Bit-exactness: a row is one column of the B operand. Its sum has the same order whatever the
// other rows, the number of rows and the number of multiprocessors: pairs of units in order within
// a warp's part of k, then the 16 warps in order.

namespace latchd::cuda {
namespace {

constexpr int kWarps = kLinearWarps, kThreads = kLinearThreads;
static_assert(kThreads == kNormThreads);
constexpr int kStageBytes = 2 * kThreads * 16;   // one pair of units a warp
constexpr int kPartialBytes = kWarps * 32 * 16;  // one 16 x 8 tile of partial sums a warp
constexpr int kPartialBuffers = 2;
constexpr int kMaxActivationBytes = 32 * 1024;
constexpr int kActivationPad = 32;  // elements; rows start 64 bytes apart in banks

// Two kernels that follow each other must share a multiprocessor, yet not two blocks of one kernel,
// or a kernel's blocks pile up on half of the multiprocessors (seen: 66 of 132). Products that add
// to the residual alternate with the others, so these take more than half of the shared memory and
// the others less than what that leaves.
constexpr int kResidualStages = 5, kOtherStages = 4;
constexpr int kMoreThanHalf = 115 * 1024;
constexpr int SharedBytes(int stages, int staged) {
  const int bytes = stages * kStageBytes + kPartialBuffers * kPartialBytes + staged;
  return stages == kResidualStages && bytes < kMoreThanHalf ? kMoreThanHalf : bytes;
}

__device__ __forceinline__ int ActivationStride(int k) {
  return static_cast<int>(ColPairs(k)) * kPairCols + kActivationPad;
}

// A row of at most kHeld * 4 * kThreads elements is normalised from registers.
constexpr int kHeld = 2;
__device__ __forceinline__ bool HoldsRow(const LinearDecodeParams& p) {
  return p.x_is_float && p.norm_weight != nullptr && p.epilogue.rows == 1 &&
         p.k <= kHeld * 4 * kThreads;
}

// x -> normalised T in shared memory, [rows][stride], zero beyond k. Ends with a barrier. `gain`:
// this thread's norm weights, if HoldsRow.
template <typename T>
__device__ void StageActivations(const LinearDecodeParams& p, T* staged, float* squares,
                                 const float4 (&gain)[kHeld]) {
  const int k = p.k, rows = p.epilogue.rows, stride = ActivationStride(k);
  const int padded = stride - kActivationPad;
  if (!p.x_is_float) {
    const int words = padded / 8;  // 16-byte pieces; k is a multiple of 8
    for (int i = threadIdx.x; i < rows * words; i += kThreads) {
      const int r = i / words, c = i % words * 8;
      uint4 v = make_uint4(0, 0, 0, 0);
      if (c < k)
        v = __ldcg(reinterpret_cast<const uint4*>(static_cast<const T*>(p.x) +
                                                  static_cast<size_t>(r) * k + c));
      *reinterpret_cast<uint4*>(staged + r * stride + c) = v;
    }
    __syncthreads();
    return;
  }
  const float* x = static_cast<const float*>(p.x);
  if (HoldsRow(p)) {
    float4 v[kHeld];
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int c = (j * kThreads + threadIdx.x) * 4;
      v[j] = c < k ? __ldcg(reinterpret_cast<const float4*>(x + c)) : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      if ((j * kThreads + threadIdx.x) * 4 < k) sum = AddSquares(v[j], sum);
    }
    sum = WarpSum(sum);
    if (threadIdx.x % 32 == 0) squares[threadIdx.x / 32] = sum;
    __syncthreads();
    const float inverse = InverseRms(squares, k, p.norm_eps);
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int c = (j * kThreads + threadIdx.x) * 4;
      const float4& g = gain[j];
      if (c < padded) {
        *reinterpret_cast<uint2*>(staged + c) =
            make_uint2(PackPair(v[j].x * inverse * g.x, v[j].y * inverse * g.y, T()),
                       PackPair(v[j].z * inverse * g.z, v[j].w * inverse * g.w, T()));
      }
    }
    __syncthreads();
    return;
  }
  if (p.norm_weight != nullptr) {
    for (int r = 0; r < rows; ++r) {
      const float sum = WarpSquares(x + static_cast<size_t>(r) * k, k);
      if (threadIdx.x % 32 == 0) squares[r * kNormWarps + threadIdx.x / 32] = sum;
    }
    __syncthreads();
  }
  for (int r = 0; r < rows; ++r) {
    const float inverse =
        p.norm_weight != nullptr ? InverseRms(squares + r * kNormWarps, k, p.norm_eps) : 1.0f;
    for (int c = threadIdx.x * 4; c < padded; c += kThreads * 4) {
      float4 v = make_float4(0, 0, 0, 0);
      if (c < k) {  // k is a multiple of 8
        v = __ldcg(reinterpret_cast<const float4*>(x + static_cast<size_t>(r) * k + c));
        if (p.norm_weight != nullptr) {
          const float4 g = *reinterpret_cast<const float4*>(p.norm_weight + c);
          v = make_float4(v.x * inverse * g.x, v.y * inverse * g.y, v.z * inverse * g.z,
                          v.w * inverse * g.w);
        }
      }
      *reinterpret_cast<uint2*>(staged + r * stride + c) =
          make_uint2(PackPair(v.x, v.y, T()), PackPair(v.z, v.w, T()));
    }
  }
  __syncthreads();
}

// The end of one 16 x 8 tile, by one warp: lane 4 g + t has outputs g and g + 8 of rows 2 t, 2 t
// + 1.
struct TileEnd {
  float residual[2][2];  // [row][output]
  bool live[2];

  // Before the barrier behind which the sums are complete, so that these loads are not waited for.
  __device__ __forceinline__ void Load(const EpilogueParams& e, int row_tile, int lane) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int r = 2 * (lane % 4) + c, o = row_tile * kTileRows + lane / 4;
      live[c] = r < e.rows && e.meta[r].slot >= 0;
      residual[c][0] = LoadResidual(e, r, o);
      residual[c][1] = LoadResidual(e, r, o + 8);
    }
  }
  // Adds the warps' partial sums in order.
  __device__ __forceinline__ void Store(const EpilogueParams& e, const float4* partial,
                                        int row_tile, int lane) const {
    float4 sum = partial[lane];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) {
      const float4 v = partial[w * 32 + lane];
      sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    const int64_t o = static_cast<int64_t>(row_tile) * kTileRows + lane / 4;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int r = 2 * (lane % 4) + c;
      if (!live[c]) continue;
      const float low = c == 0 ? sum.x : sum.y, high = c == 0 ? sum.z : sum.w;
      if (e.kind == Epilogue::kSiluMul) {
        StoreGated(e, r, o, low, high);
      } else {
        StoreOutput(e, r, o, low, residual[c][0]);
        StoreOutput(e, r, o + 8, high, residual[c][1]);
      }
    }
  }
};

// At most 8 rows, whose activations fit shared memory.
template <typename T, int kStages>
__global__ void __launch_bounds__(kThreads, 2)
    LinearDecodeKernel(const __grid_constant__ LinearDecodeParams p) {
  extern __shared__ __align__(128) unsigned char shared[];
  float4* partials = reinterpret_cast<float4*>(shared + kStages * kStageBytes);
  T* staged =
      reinterpret_cast<T*>(shared + kStages * kStageBytes + kPartialBuffers * kPartialBytes);
  __shared__ float squares[8 * kNormWarps];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const LinearShare share = ShareOf(p, warp);

  // The stream of this lane: own_pairs pairs of 16-byte fragments a tile, then a jump to the next.
  const unsigned char* source =
      static_cast<const unsigned char*>(p.weight) +
      (static_cast<size_t>(share.first_tile) * share.pairs + share.first_pair) *
          (kPairElements * 2) +
      lane * 16;
  const size_t jump = static_cast<size_t>(share.pairs - share.own_pairs) * (kPairElements * 2);
  int to_issue = (share.last_tile - share.first_tile) * share.own_pairs, issued_in_tile = 0;
  const uint32_t ring = SharedAddress(shared) + threadIdx.x * 16;
  auto issue = [&](int stage) {
    if (to_issue > 0) {
      const uint32_t slot = ring + stage * kStageBytes;
      CpAsync16(slot, source);
      CpAsync16(slot + kThreads * 16, source + kUnitElements * 2);
      source += kPairElements * 2;
      if (++issued_in_tile == share.own_pairs) {
        issued_in_tile = 0;
        source += jump;
      }
      --to_issue;
    }
    CpAsyncCommit();
  };
#pragma unroll
  for (int s = 0; s < kStages; ++s) issue(s);
  float4 gain[kHeld];
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int c = (j * kThreads + threadIdx.x) * 4;
    gain[j] = HoldsRow(p) && c < p.k ? *reinterpret_cast<const float4*>(p.norm_weight + c)
                                     : make_float4(0, 0, 0, 0);
  }

  WaitForPrevious();
  AllowNext();  // not later: 1 to 5 tiles before the end made no difference
  StageActivations<T>(p, staged, squares, gain);

  int stage = 0, buffer = 0;
  const T* x = staged + g * ActivationStride(p.k) + share.first_pair * kPairCols + t * 8;
  for (int tile = share.first_tile; tile < share.last_tile; ++tile) {
    float sums[4] = {};
#pragma unroll 2
    for (int i = 0; i < share.own_pairs; ++i) {
      uint4 b = make_uint4(0, 0, 0, 0);
      if (g < p.epilogue.rows) b = *reinterpret_cast<const uint4*>(x + i * kPairCols);
      CpAsyncWait<kStages - 1>();
      const uint32_t slot = ring + stage * kStageBytes;
      const uint4 a0 = LoadShared16(slot), a1 = LoadShared16(slot + kThreads * 16);
      Mma(sums, a0, b.x, b.y, T());
      Mma(sums, a1, b.z, b.w, T());
      issue(stage);
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    // Two buffers, one barrier a tile: whoever reads buffer b passes the next barrier before
    // anybody writes b again.
    float4* partial = partials + buffer * (kWarps * 32);
    partial[warp * 32 + lane] = make_float4(sums[0], sums[1], sums[2], sums[3]);
    const bool finishes = warp == tile % kWarps;
    TileEnd end;
    if (finishes) end.Load(p.epilogue, tile, lane);
    __syncthreads();
    if (finishes) end.Store(p.epilogue, partial, tile, lane);
    buffer ^= 1;
  }
}

template <typename T, int kStages>
OpStatus LaunchDecode(const LinearDecodeParams& p, size_t staged, OpStream stream) {
  const int blocks = std::min(SmCount(), p.row_tiles);
  return Launch("linear decode", LinearDecodeKernel<T, kStages>,
                dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
                static_cast<size_t>(SharedBytes(kStages, static_cast<int>(staged))), stream,
                LaunchOrder::kAfterPrevious, p);
}

size_t StagedBytes(const LinearOp& op) {
  return static_cast<size_t>(op.rows) *
         (static_cast<size_t>(ColPairs(op.weight.k)) * kPairCols + kActivationPad) * 2;
}
bool FitsShared(const LinearOp& op) {
  return op.rows <= 8 && StagedBytes(op) <= kMaxActivationBytes;
}
bool NeedsConversion(const LinearOp& op) { return !FitsShared(op) && op.x_dtype == DType::kF32; }

template <typename T>
OpStatus Run(const LinearOp& op, OpStream stream) {
  LinearDecodeParams p = {op.weight.data,
                          op.x,
                          op.norm_weight,
                          op.norm_eps,
                          op.x_dtype == DType::kF32,
                          static_cast<int32_t>(op.weight.k),
                          static_cast<int32_t>(RowTiles(op.weight.n)),
                          MakeEpilogue(op)};
  if (FitsShared(op)) {
    return op.epilogue == Epilogue::kResidual
               ? LaunchDecode<T, kResidualStages>(p, StagedBytes(op), stream)
               : LaunchDecode<T, kOtherStages>(p, StagedBytes(op), stream);
  }
  if (NeedsConversion(op)) {
    if (OpStatus s = NormRows(op, op.workspace, op.weight.dtype, stream); !s.ok()) return s;
    p.x = op.workspace;
    p.x_is_float = false;
  }
  // More than 64 rows: several passes. Each row's sum is the same in any of these variants.
  for (int32_t begin = 0; begin < op.rows; begin += 64) {
    LinearDecodeParams part = p;
    const size_t y_width =
        static_cast<size_t>(op.epilogue == Epilogue::kSiluMul ? op.weight.n / 2 : op.weight.n);
    part.x = static_cast<const T*>(p.x) + static_cast<size_t>(begin) * op.weight.k;
    part.epilogue.meta += begin;
    part.epilogue.rows = std::min(64, op.rows - begin);
    part.epilogue.y = static_cast<char*>(op.y) + begin * y_width * SizeOf(op.y_dtype);
    if (OpStatus s = LinearDecodeWide(part, op.weight.dtype, stream); !s.ok()) return s;
  }
  return OpStatus::Ok();
}

template <typename T>
OpStatus PrepareAll() {
  constexpr int kResidualBytes = SharedBytes(kResidualStages, kMaxActivationBytes);
  constexpr int kOtherBytes = SharedBytes(kOtherStages, kMaxActivationBytes);
  if (OpStatus s = Prepare("linear decode", LinearDecodeKernel<T, kResidualStages>, kResidualBytes);
      !s.ok())
    return s;
  return Prepare("linear decode", LinearDecodeKernel<T, kOtherStages>, kOtherBytes);
}

}  // namespace

size_t LinearDecodeWorkspaceBytes(const LinearOp& op) {
  const size_t values = static_cast<size_t>(op.rows) * static_cast<size_t>(op.weight.k);
  if (op.weight.dtype == DType::kF32) return op.norm_weight != nullptr ? values * sizeof(float) : 0;
  return NeedsConversion(op) ? values * 2 : 0;
}

OpStatus LinearDecode(const LinearOp& op, OpStream stream) {
  if (op.weight.k % 8 != 0) {
    return Unsupported("linear: k of a 16-bit weight must be a multiple of 8, got " +
                       std::to_string(op.weight.k));
  }
  if (op.x_dtype != DType::kF32 && (op.x_dtype != op.weight.dtype || op.norm_weight != nullptr)) {
    return Invalid("linear: x must be f32, or " + std::string(Name(op.weight.dtype)) +
                   " without a norm, got " + std::string(Name(op.x_dtype)));
  }
  if (const size_t need = LinearDecodeWorkspaceBytes(op); need > op.workspace_bytes) {
    return WorkspaceTooSmall("linear", need, op.workspace_bytes);
  }
  return op.weight.dtype == DType::kF16 ? Run<__half>(op, stream) : Run<__nv_bfloat16>(op, stream);
}

OpStatus InitLinearDecode() {
  if (OpStatus s = PrepareLinearDecodeWide(); !s.ok()) return s;
  if (OpStatus s = PrepareAll<__half>(); !s.ok()) return s;
  return PrepareAll<__nv_bfloat16>();
}

}  // namespace latchd::cuda
