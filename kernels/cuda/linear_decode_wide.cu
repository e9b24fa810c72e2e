#include <algorithm>

#include "kernels/cuda/common/device.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/linear_decode.cuh"

// The decode matrix product for rows that do not fit shared memory as a whole. Activations come
// from L2 again for every run of row tiles, so a pass takes kRowTiles tiles at once, and both
// weights and activations go through the ring: each lane copies its own fragments of both and
// nobody else reads them. Sums have the order of LinearDecodeKernel.

namespace latchd::cuda {
namespace {

constexpr int kRowTiles = 4;
constexpr int kPieceBytes = kLinearThreads * 16;  // one fragment of every lane
constexpr int kRounds = 4;                        // 16 x 8 tiles of partial sums held at once
constexpr int kPartialBytes = kRounds * kLinearWarps * 32 * 16;

template <int kColumnTiles>
struct Wide {
  static constexpr int kTiles = kColumnTiles == 8 ? 2 : kRowTiles;
  static constexpr int kPieces = 2 * kTiles + kColumnTiles;
  static constexpr int kStages =
      kColumnTiles <= 2 && kPieces * 3 * kPieceBytes + kPartialBytes <= 227 * 1024 ? 3 : 2;
  static constexpr int kSharedBytes = kStages * kPieces * kPieceBytes + kPartialBytes;
  static constexpr int kColumnsARound = kColumnTiles < kRounds ? kColumnTiles : kRounds;
};

// kColumnTiles: groups of 8 rows.
template <typename T, int kColumnTiles>
__global__ void __launch_bounds__(kLinearThreads, 1)
    LinearDecodeWideKernel(const __grid_constant__ LinearDecodeParams p) {
  using Shape = Wide<kColumnTiles>;
  extern __shared__ __align__(128) unsigned char shared[];
  float* partials =
      reinterpret_cast<float*>(shared + Shape::kStages * Shape::kPieces * kPieceBytes);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int rows = p.epilogue.rows, k = p.k;
  const LinearShare share = ShareOf(p, warp);
  const int tiles = share.last_tile - share.first_tile,
            passes = (tiles + Shape::kTiles - 1) / Shape::kTiles;
  auto pass_begin = [&](int pass) { return share.first_tile + tiles * pass / passes; };

  const uint32_t ring = SharedAddress(shared) + threadIdx.x * 16;
  auto issue_weights = [&](int stage, int pass, int i) {
    const int begin = pass_begin(pass), count = pass_begin(pass + 1) - begin;
    const unsigned char* from =
        static_cast<const unsigned char*>(p.weight) +
        (static_cast<size_t>(begin) * share.pairs + share.first_pair + i) * (kPairElements * 2) +
        lane * 16;
    uint32_t to = ring + stage * (Shape::kPieces * kPieceBytes);
#pragma unroll
    for (int j = 0; j < Shape::kTiles; ++j) {
      if (j < count) {
        CpAsync16(to, from);
        CpAsync16(to + kPieceBytes, from + kUnitElements * 2);
      }
      to += 2 * kPieceBytes;
      from += static_cast<size_t>(share.pairs) * (kPairElements * 2);
    }
  };
  auto issue_activations = [&](int stage, int i) {
    const int column = (share.first_pair + i) * kPairCols + t * 8;
    uint32_t to = ring + (stage * Shape::kPieces + 2 * Shape::kTiles) * kPieceBytes;
#pragma unroll
    for (int c = 0; c < kColumnTiles; ++c, to += kPieceBytes) {
      const bool live = c * 8 + g < rows && column < k;
      CpAsync16OrZero(
          to, static_cast<const T*>(p.x) + (live ? static_cast<size_t>(c * 8 + g) * k + column : 0),
          live);
    }
  };
  // The step after (pass, i) of this warp's stream.
  struct Cursor {
    int pass, i;
  } next = {0, 0};
  auto advance = [&](Cursor& at) {
    if (++at.i == share.own_pairs) at = {at.pass + 1, 0};
  };
  if (share.own_pairs == 0) next.pass = passes;
  Cursor weights = next;
#pragma unroll
  for (int s = 0; s < Shape::kStages; ++s) {
    if (weights.pass == passes) break;
    issue_weights(s, weights.pass, weights.i);
    advance(weights);
  }
  WaitForPrevious();
  AllowNext();
#pragma unroll
  for (int s = 0; s < Shape::kStages; ++s) {
    if (next.pass < passes) {
      issue_activations(s, next.i);
      advance(next);
    }
    CpAsyncCommit();
  }

  int stage = 0;
  for (int pass = 0; pass < passes; ++pass) {
    const int begin = pass_begin(pass), count = pass_begin(pass + 1) - begin;
    float sums[Shape::kTiles][kColumnTiles][4] = {};
    for (int i = 0; i < share.own_pairs; ++i) {
      CpAsyncWait<Shape::kStages - 1>();
      const uint32_t slot = ring + stage * (Shape::kPieces * kPieceBytes);
      uint4 b[kColumnTiles];
#pragma unroll
      for (int c = 0; c < kColumnTiles; ++c)
        b[c] = LoadShared16(slot + (2 * Shape::kTiles + c) * kPieceBytes);
#pragma unroll
      for (int j = 0; j < Shape::kTiles; ++j) {
        if (j < count) {
          const uint4 a0 = LoadShared16(slot + 2 * j * kPieceBytes),
                      a1 = LoadShared16(slot + (2 * j + 1) * kPieceBytes);
#pragma unroll
          for (int c = 0; c < kColumnTiles; ++c) Mma(sums[j][c], a0, b[c].x, b[c].y, T());
#pragma unroll
          for (int c = 0; c < kColumnTiles; ++c) Mma(sums[j][c], a1, b[c].z, b[c].w, T());
        }
      }
      if (next.pass < passes) {
        issue_weights(stage, next.pass, next.i);
        issue_activations(stage, next.i);
        advance(next);
      }
      CpAsyncCommit();
      stage = stage + 1 == Shape::kStages ? 0 : stage + 1;
    }
    // One output a thread and round, warps in order.
#pragma unroll
    for (int j = 0; j < Shape::kTiles; ++j) {
      if (j >= count) break;
#pragma unroll
      for (int c0 = 0; c0 < kColumnTiles; c0 += Shape::kColumnsARound) {
        __syncthreads();
#pragma unroll
        for (int c = 0; c < Shape::kColumnsARound; ++c) {
          const float(&s)[4] = sums[j][c0 + c];
          reinterpret_cast<float4*>(partials)[(c * kLinearWarps + warp) * 32 + lane] =
              make_float4(s[0], s[1], s[2], s[3]);
        }
        __syncthreads();
        if (threadIdx.x < Shape::kColumnsARound * 128) {
          const int c = threadIdx.x / 128, f = threadIdx.x % 128;
          const float* from = partials + c * kLinearWarps * 128 + f;
          float sum = from[0];
#pragma unroll
          for (int w = 1; w < kLinearWarps; ++w) sum += from[w * 128];
          const float above = __shfl_down_sync(0xffffffffu, sum, 2);  // output + 8 of the same row
          const int output = (begin + j) * kTileRows + f / 16 + f % 4 / 2 * 8;
          const int r = (c0 + c) * 8 + f / 4 % 4 * 2 + f % 2;
          if (r < rows && p.epilogue.meta[r].slot >= 0) {
            if (p.epilogue.kind != Epilogue::kSiluMul) {
              StoreOutput(p.epilogue, r, output, sum);
            } else if (f % 4 < 2) {
              StoreGated(p.epilogue, r, output, sum, above);
            }
          }
        }
      }
    }
  }
}

template <typename T, int kColumnTiles>
OpStatus LaunchWide(const LinearDecodeParams& p, OpStream stream) {
  const int blocks = std::min(SmCount(), p.row_tiles);
  return Launch("linear decode wide", LinearDecodeWideKernel<T, kColumnTiles>,
                dim3(static_cast<unsigned>(blocks)), dim3(kLinearThreads),
                Wide<kColumnTiles>::kSharedBytes, stream, LaunchOrder::kAfterPrevious, p);
}

template <typename T>
OpStatus Run(const LinearDecodeParams& p, OpStream stream) {
  const int rows = p.epilogue.rows;
  if (rows <= 8) return LaunchWide<T, 1>(p, stream);
  if (rows <= 16) return LaunchWide<T, 2>(p, stream);
  if (rows <= 32) return LaunchWide<T, 4>(p, stream);
  return LaunchWide<T, 8>(p, stream);
}

template <typename T>
OpStatus PrepareAll() {
  for (const OpStatus& s :
       {Prepare("linear decode 8", LinearDecodeWideKernel<T, 1>, Wide<1>::kSharedBytes),
        Prepare("linear decode 16", LinearDecodeWideKernel<T, 2>, Wide<2>::kSharedBytes),
        Prepare("linear decode 32", LinearDecodeWideKernel<T, 4>, Wide<4>::kSharedBytes),
        Prepare("linear decode 64", LinearDecodeWideKernel<T, 8>, Wide<8>::kSharedBytes)}) {
    if (!s.ok()) return s;
  }
  return OpStatus::Ok();
}

}  // namespace

OpStatus LinearDecodeWide(const LinearDecodeParams& p, DType dtype, OpStream stream) {
  return dtype == DType::kF16 ? Run<__half>(p, stream) : Run<__nv_bfloat16>(p, stream);
}

OpStatus PrepareLinearDecodeWide() {
  if (OpStatus s = PrepareAll<__half>(); !s.ok()) return s;
  return PrepareAll<__nv_bfloat16>();
}

}  // namespace latchd::cuda
