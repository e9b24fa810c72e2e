#pragma once

#include <algorithm>

#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/gqa/attend.cuh"
#include "kernels/cuda/gqa/decode_plan.cuh"

// Split-K decode attention over 16-bit keys and values, on the tensor cores. A block takes a run of
// splits of one KV head of one row, 64 keys at a time through a ring in shared memory (cp.async):
// - scores: each warp 16 of the 64 keys, all of head_dim; queries are the A operand;
// - weighted values: each warp a quarter of head_dim, all 64 keys, so nothing has to be merged.
// A group has at most 8 q heads a block and an mma has 16 rows: rows 8..15 hold what rounding the
// first eight to 16 bits lost, for queries and for softmax weights. That makes both as good as f32
// at no cost.

namespace latchd::cuda {

template <typename T, int kDim>
struct DecodeTile {
  static constexpr int kThreads = 128, kWarps = 4, kQueries = 8, kStages = 2;
  static constexpr int kTokens = kSplitTokens;
  static constexpr int kPieces = kDim / 8;  // of 16 bytes, a token
  static constexpr int kTileBytes = kTokens * kDim * 2;
  static constexpr int kStageBytes = 2 * kTileBytes;       // keys, values
  static constexpr int kQueryBytes = 16 * (kDim + 8) * 2;  // rows 16 bytes apart in banks
  static constexpr int kWeightBytes = 16 * (kTokens + 8) * 2;
  static constexpr int kValueTiles = kDim / kWarps / 8;  // 8 columns each, a warp

  // Byte offset of a piece in a tile. The permutation spreads 8 tokens' pieces over all banks.
  static __device__ __forceinline__ int At(int token, int piece) {
    return (token * kPieces + (piece ^ (token & 7))) * 16;
  }
};

// Rounds (a, b) to T, and what that lost to T again.
template <typename T>
__device__ __forceinline__ uint2 SplitPair(float a, float b) {
  const uint32_t high = PackPair(a, b, T());
  const float2 rounded = Unpack(high, T());
  return make_uint2(high, PackPair(a - rounded.x, b - rounded.y, T()));
}

template <typename T, int kDim>
__global__ void __launch_bounds__(128, kDim == 256 ? 1 : 4)
    AttentionDecodeMmaKernel(const __grid_constant__ AttendParams p) {
  using Tile = DecodeTile<T, kDim>;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ __align__(16) unsigned char query_rows[Tile::kQueryBytes];
  __shared__ __align__(16) unsigned char weight_rows[Tile::kWeightBytes];
  __shared__ float warp_max[Tile::kWarps][8], warp_sum[Tile::kWarps][8];
  __shared__ float merge_weights[Tile::kQueries][kMaxSplits];
  __shared__ bool last_arrival;
  const AttentionOp& op = p.op;
  const int groups = (p.group + Tile::kQueries - 1) / Tile::kQueries;
  const int kv_head = blockIdx.y / groups, r = blockIdx.z, d = op.kv.head_dim;
  const int head0 = blockIdx.y % groups * Tile::kQueries,
            heads = min(Tile::kQueries, p.group - head0);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;

  // Before the wait: RowMeta, page table and all keys but the row's own. REQUIRES: the kernel
  // before this one wrote none of them (it is AttentionPrep, or a copy came between).
  const RowMeta meta = op.meta[r];
  const int first = op.window > 0 ? max(0, meta.total - op.window) : 0;
  const int length = meta.total - first, split_tokens = SplitLength(length),
            splits = SplitCount(length);
  const int split0 = splits * static_cast<int>(blockIdx.x) / p.split_blocks;
  const int split1 = splits * (static_cast<int>(blockIdx.x) + 1) / p.split_blocks;
  if (meta.slot < 0 || split0 == split1) {
    WaitForPrevious();
    return;
  }
  const int begin = first + split0 * split_tokens,
            end = min(meta.total, first + split1 * split_tokens);
  const int chunks = (end - begin + Tile::kTokens - 1) / Tile::kTokens, own = meta.total - 1;

  const uint32_t ring = SharedAddress(shared);
  // Keys and values of one chunk, without token `skip`; zero beyond the last token and head_dim, so
  // that no stale bits reach a product.
  auto load = [&](int chunk, int skip) {
    const uint32_t stage = ring + chunk % Tile::kStages * Tile::kStageBytes;
    const int token0 = begin + chunk * Tile::kTokens;
    const bool one_page =
        token0 >> op.kv.page_shift == (token0 + Tile::kTokens - 1) >> op.kv.page_shift;
    const size_t page = op.kv.Offset(meta.slot, kv_head, token0);
#pragma unroll 4
    for (int i = threadIdx.x; i < Tile::kTokens * Tile::kPieces; i += Tile::kThreads) {
      const int row = i / Tile::kPieces, piece = i % Tile::kPieces, token = token0 + row;
      if (token == skip) continue;
      const bool live = token < end && piece * 8 < d;
      size_t from = page;
      if (live && !one_page) from = op.kv.Offset(meta.slot, kv_head, token);
      if (live) from += (one_page ? row * d : 0) + piece * 8;
      const uint32_t to = stage + Tile::At(row, piece);
      CpAsync16OrZero(to, static_cast<const T*>(op.kv.key) + from, live);
      CpAsync16OrZero(to + Tile::kTileBytes, static_cast<const T*>(op.kv.value) + from, live);
    }
  };
#pragma unroll
  for (int c = 0; c < Tile::kStages; ++c) {
    if (c < chunks) load(c, own);
    CpAsyncCommit();
  }
  WaitForPrevious();
  AllowNext();

  const int own_chunk =
      (own - begin) / Tile::kTokens;  // the last block's last chunk, if it is here
  if (own < end && own_chunk < Tile::kStages && threadIdx.x < 2 * Tile::kPieces) {
    const int piece = threadIdx.x % Tile::kPieces, side = threadIdx.x / Tile::kPieces;
    uint4 v = make_uint4(0, 0, 0, 0);
    if (piece * 8 < d) {
      const T* from = static_cast<const T*>(side == 0 ? op.kv.key : op.kv.value);
      v = __ldcg(
          reinterpret_cast<const uint4*>(from + op.kv.Offset(meta.slot, kv_head, own) + piece * 8));
    }
    unsigned char* stage = shared + own_chunk * Tile::kStageBytes + side * Tile::kTileBytes;
    *reinterpret_cast<uint4*>(stage + Tile::At((own - begin) % Tile::kTokens, piece)) = v;
  }
  const int64_t q_head0 = static_cast<int64_t>(r) * op.q_heads + kv_head * p.group + head0;
  for (int i = threadIdx.x; i < Tile::kQueries * kDim / 4; i += Tile::kThreads) {
    const int h = i / (kDim / 4), e = i % (kDim / 4) * 4;
    float4 q = make_float4(0, 0, 0, 0);
    if (h < heads && e < d)
      q = __ldcg(reinterpret_cast<const float4*>(op.q + (q_head0 + h) * d + e));
    const uint2 low = SplitPair<T>(q.x * op.scale, q.y * op.scale),
                high = SplitPair<T>(q.z * op.scale, q.w * op.scale);
    *reinterpret_cast<uint2*>(query_rows + (h * (kDim + 8) + e) * 2) = make_uint2(low.x, high.x);
    *reinterpret_cast<uint2*>(query_rows + ((h + 8) * (kDim + 8) + e) * 2) =
        make_uint2(low.y, high.y);
  }

  const uint32_t query_at =
      SharedAddress(query_rows) + (lane % 16 * (kDim + 8) + lane / 16 * 8) * 2;
  const uint32_t weight_at =
      SharedAddress(weight_rows) + (lane % 16 * (Tile::kTokens + 8) + lane / 16 * 8) * 2;
  SoftmaxState state = EmptySoftmax();  // of q head g, the same in every warp
  float acc[Tile::kValueTiles][4] = {};
  const int split_chunks = split_tokens / Tile::kTokens;
  int split = split0, chunks_left = split_chunks;
  for (int c = 0; c < chunks; ++c) {
    CpAsyncWait<Tile::kStages - 1>();
    __syncthreads();
    const uint32_t keys = ring + c % Tile::kStages * Tile::kStageBytes,
                   values = keys + Tile::kTileBytes;

    float score[2][4] = {};
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      const uint4 a = LoadMatrix4(query_at + k * 32);
      const uint4 b =
          LoadMatrix4(keys + Tile::At(warp * 16 + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
      Mma(score[0], a, b.x, b.y, T());
      Mma(score[1], a, b.z, b.w, T());
    }
    float max = -INFINITY;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float& s = score[n][j];
        s += score[n][j + 2];
        if (op.softcap > 0.0f) s = op.softcap * tanhf(s / op.softcap);
        const int token = begin + c * Tile::kTokens + warp * 16 + n * 8 + 2 * t + j;
        if (token >= end) {
          s = -INFINITY;
        } else if (op.bias != nullptr && g < heads) {
          s += BiasOf(op, r, kv_head * p.group + head0 + g, token);
        }
        max = fmaxf(max, s);
      }
    }
    max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 1));
    max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 2));
    if (t == 0) warp_max[warp][g] = max;
    __syncthreads();
    max = state.max;
#pragma unroll
    for (int w = 0; w < Tile::kWarps; ++w) max = fmaxf(max, warp_max[w][g]);
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        score[n][j] = score[n][j] == -INFINITY ? 0.0f : __expf(score[n][j] - max);
        sum += score[n][j];
      }
      const uint2 pair = SplitPair<T>(score[n][0], score[n][1]);
      unsigned char* to = weight_rows + (g * (Tile::kTokens + 8) + warp * 16 + n * 8 + 2 * t) * 2;
      *reinterpret_cast<uint32_t*>(to) = pair.x;
      *reinterpret_cast<uint32_t*>(to + 8 * (Tile::kTokens + 8) * 2) = pair.y;
    }
    sum = WarpSum<4>(sum);
    if (t == 0) warp_sum[warp][g] = sum;
    __syncthreads();
    const float scale = Rescale(state.max, max);
    sum = 0.0f;
#pragma unroll
    for (int w = 0; w < Tile::kWarps; ++w) sum += warp_sum[w][g];
    state = {max, state.sum * scale + sum};
#pragma unroll
    for (int n = 0; n < Tile::kValueTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) acc[n][j] *= scale;
    }
#pragma unroll
    for (int k = 0; k < Tile::kTokens / 16; ++k) {
      const uint4 a = LoadMatrix4(weight_at + k * 32);
#pragma unroll
      for (int n = 0; n < Tile::kValueTiles; n += 2) {
        const uint4 b =
            LoadMatrix4Transposed(values + Tile::At(k * 16 + lane / 8 % 2 * 8 + lane % 8,
                                                    warp * Tile::kValueTiles + n + lane / 16));
        Mma(acc[n], a, b.x, b.y, T());
        Mma(acc[n + 1], a, b.z, b.w, T());
      }
    }
    __syncthreads();
    if (c + Tile::kStages < chunks) load(c + Tile::kStages, -1);
    CpAsyncCommit();

    if (--chunks_left > 0 && c + 1 < chunks) continue;
    const int64_t at = (q_head0 + g) * p.max_splits + split;
    float whole = 1.0f;
    if (splits == 1 && g < heads) {
      whole /= Denominator(state, op.head_sink, kv_head * p.group + head0 + g);
    }
#pragma unroll
    for (int n = 0; n < Tile::kValueTiles; ++n) {
      const int e = (warp * Tile::kValueTiles + n) * 8 + 2 * t;
      const float2 v =
          make_float2((acc[n][0] + acc[n][2]) * whole, (acc[n][1] + acc[n][3]) * whole);
      if (g < heads && e < d) {
        if (splits == 1) {
          StoreAs(op.out_dtype, op.out, (q_head0 + g) * d + e, v.x);
          StoreAs(op.out_dtype, op.out, (q_head0 + g) * d + e + 1, v.y);
        } else {
          *reinterpret_cast<float2*>(p.partial + at * d + e) = v;
        }
      }
      acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0.0f;
    }
    if (splits > 1 && warp == 0 && t == 0 && g < heads)
      p.state[at] = make_float2(state.max, state.sum);
    state = EmptySoftmax();
    chunks_left = split_chunks;
    ++split;
  }
  if (splits == 1) return;
  unsigned* ticket = tickets + r * gridDim.y + blockIdx.y;
  if (LastArrival(ticket, min(splits, p.split_blocks), &last_arrival)) {
    MergeSplits<Tile::kThreads>(p, q_head0, heads, splits, merge_weights);
  }
}

template <typename T, int kDim>
OpStatus LaunchDecodeMma(AttendParams p, void* stream) {
  using Tile = DecodeTile<T, kDim>;
  const int groups = (p.group + Tile::kQueries - 1) / Tile::kQueries;
  // Enough blocks to balance rows of different lengths; with many rows each takes several splits,
  // so that its ring stays full. Results do not depend on it. Measured at 8 to 32 rows of 1024
  // keys, from 3 to 16.
  constexpr int kBlocksPerMultiprocessor = kDim <= 64 ? 4 : 8;
  const int units = p.op.rows * p.op.kv.kv_heads * groups;
  p.split_blocks = std::clamp(SmCount() * kBlocksPerMultiprocessor / units, 1, p.max_splits);
  const bool one_chunk =
      p.split_blocks == p.max_splits && SplitLength(p.op.max_total) == Tile::kTokens;
  const dim3 grid(static_cast<unsigned>(p.split_blocks),
                  static_cast<unsigned>(p.op.kv.kv_heads * groups),
                  static_cast<unsigned>(p.op.rows));
  return Launch("attention decode", AttentionDecodeMmaKernel<T, kDim>, grid, dim3(Tile::kThreads),
                static_cast<size_t>((one_chunk ? 1 : Tile::kStages) * Tile::kStageBytes), stream,
                LaunchOrder::kAfterPrevious, p);
}

template <typename T>
OpStatus RunDecodeMma(const AttendParams& p, void* stream) {
  if (p.op.kv.head_dim <= 64) return LaunchDecodeMma<T, 64>(p, stream);
  if (p.op.kv.head_dim <= 128) return LaunchDecodeMma<T, 128>(p, stream);
  return LaunchDecodeMma<T, 256>(p, stream);
}

template <typename T, int kDim>
OpStatus PrepareDecodeMmaDim() {
  using Tile = DecodeTile<T, kDim>;
  return Prepare("attention decode", AttentionDecodeMmaKernel<T, kDim>,
                 Tile::kStages * Tile::kStageBytes);
}
template <typename T>
OpStatus PrepareDecodeMma() {
  for (auto prepare :
       {PrepareDecodeMmaDim<T, 64>, PrepareDecodeMmaDim<T, 128>, PrepareDecodeMmaDim<T, 256>}) {
    if (OpStatus s = prepare(); !s.ok()) return s;
  }
  return OpStatus::Ok();
}

}  // namespace latchd::cuda
