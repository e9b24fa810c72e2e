#pragma once

#include "kernels/api/ops.h"
#include "kernels/cuda/common/device.cuh"
#include "kernels/cuda/gqa/softmax_state.cuh"

// The inner loop of attention, for decode and prefill: a block attends a few query vectors of one
// KV head ("lanes" of the group) to a range of keys, each loaded once for all of them. Arithmetic
// in f32. kTokenLanes lanes share a key, 8 elements (one 16-byte load of 16-bit KV) each, so a warp
// takes 32 / kTokenLanes keys at once; every set of lanes keeps its own softmax state until the
// end.

namespace latchd::cuda {

// Bias of the score of row r's q head against a key; 0 without one.
__device__ __forceinline__ float BiasOf(const AttentionOp& op, int64_t r, int q_head, int key) {
  if (op.bias == nullptr) return 0.0f;
  return op.bias[r * op.bias_row_stride + q_head * op.bias_head_stride + key];
}

// Eight elements as loaded.
template <typename T>
struct Raw8 {
  uint4 words[sizeof(T) / 2];
  // Past L1: a line may hold a token that the previous kernel is still writing.
  __device__ __forceinline__ void Load(const T* p) {
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(T) / 2); ++i)
      words[i] = __ldcg(reinterpret_cast<const uint4*>(p) + i);
  }
  __device__ __forceinline__ void Expand(float (&out)[8]) const {
    if constexpr (sizeof(T) == 4) {
      const uint32_t w[8] = {words[0].x, words[0].y, words[0].z, words[0].w,
                             words[1].x, words[1].y, words[1].z, words[1].w};
#pragma unroll
      for (int i = 0; i < 8; ++i) out[i] = __uint_as_float(w[i]);
    } else {
      const uint32_t w[4] = {words[0].x, words[0].y, words[0].z, words[0].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 f = Unpack(w[i], T());
        out[2 * i] = f.x;
        out[2 * i + 1] = f.y;
      }
    }
  }
};

template <typename T, int kTokenLanes, int kQueries, int kWarps>
struct Attend {
  static constexpr int kTokensPerWarp = 32 / kTokenLanes;
  static constexpr int kTokensPerPass = kTokensPerWarp * kWarps;
  static constexpr int kUnroll =
      kQueries >= 8 || sizeof(T) == 4 ? 2 : 4;  // keys in flight a lane set
  static constexpr int kThreads = kWarps * 32;

  struct alignas(16) Shared {
    float q[kQueries][kTokenLanes * 8];  // scaled; zero beyond head_dim and for absent queries
    // Sums of all warps, for the merge at the end.
    float acc[kWarps][kQueries][kTokenLanes * 8];
    SoftmaxState state[kWarps][kQueries];
  };

  Raw8<T> key[kUnroll], value[kUnroll];
  float acc[kQueries][8];
  SoftmaxState state[kQueries];

  static __device__ __forceinline__ int TokenSlot() { return threadIdx.x / kTokenLanes; }
  static __device__ __forceinline__ int Dim() { return threadIdx.x % kTokenLanes * 8; }

  // Keys base + i * kTokensPerPass + TokenSlot(), those below `end` for which `wanted` holds.
  template <typename Wanted>
  __device__ __forceinline__ void Load(const KvView& kv, int slot, int kv_head, int base, int end,
                                       Wanted wanted) {
    const bool in_head = Dim() < kv.head_dim;
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int token = base + i * kTokensPerPass + TokenSlot();
      if (token < end && in_head && wanted(token)) {
        const size_t at = kv.Offset(slot, kv_head, token) + Dim();
        key[i].Load(static_cast<const T*>(kv.key) + at);
        value[i].Load(static_cast<const T*>(kv.value) + at);
      }
    }
  }

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
#pragma unroll
      for (int w = 0; w < static_cast<int>(sizeof(T) / 2); ++w)
        key[i].words[w] = value[i].words[w] = make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int h = 0; h < kQueries; ++h) {
      state[h] = EmptySoftmax();
#pragma unroll
      for (int e = 0; e < 8; ++e) acc[h][e] = 0.0f;
    }
  }

  // Query vectors into shared memory: query(h) is the address of its [head_dim], or null. Ends with
  // a barrier. Not registers: 32 of them are the difference between one and two kernels a
  // multiprocessor.
  template <typename Query>
  static __device__ __forceinline__ void LoadQueries(Shared& shared, int head_dim, float scale,
                                                     Query query) {
    for (int i = threadIdx.x; i < kQueries * kTokenLanes * 8; i += kThreads) {
      const int h = i / (kTokenLanes * 8), e = i % (kTokenLanes * 8);
      const float* from = query(h);
      shared.q[h][e] = from != nullptr && e < head_dim ? __ldcg(from + e) * scale : 0.0f;
    }
    __syncthreads();
  }

  // Takes the loaded keys into the state of each query h that sees them: visible(h, token).
  // bias(h, token) is called for those alone.
  template <typename Visible, typename Bias>
  __device__ __forceinline__ void Compute(const Shared& shared, int base, float softcap,
                                          Visible visible, Bias bias) {
    float score[kQueries][kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      float k[8];
      key[i].Expand(k);
      const int token = base + i * kTokensPerPass + TokenSlot();
#pragma unroll
      for (int h = 0; h < kQueries; ++h) {
        const float4 a = *reinterpret_cast<const float4*>(&shared.q[h][Dim()]);
        const float4 b = *reinterpret_cast<const float4*>(&shared.q[h][Dim() + 4]);
        float s = a.x * k[0];
        s = fmaf(a.y, k[1], s), s = fmaf(a.z, k[2], s), s = fmaf(a.w, k[3], s);
        s = fmaf(b.x, k[4], s), s = fmaf(b.y, k[5], s), s = fmaf(b.z, k[6], s),
        s = fmaf(b.w, k[7], s);
        s = WarpSum<kTokenLanes>(s);
        if (softcap > 0.0f) s = softcap * tanhf(s / softcap);
        score[h][i] = visible(h, token) ? s + bias(h, token) : -INFINITY;
      }
    }
#pragma unroll
    for (int h = 0; h < kQueries; ++h) {
      float max = state[h].max;
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) max = fmaxf(max, score[h][i]);
      const float scale = Rescale(state[h].max, max);
      float sum = state[h].sum * scale;
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        score[h][i] = score[h][i] == -INFINITY ? 0.0f : __expf(score[h][i] - max);
        sum += score[h][i];
      }
      state[h] = {max, sum};
#pragma unroll
      for (int e = 0; e < 8; ++e) acc[h][e] *= scale;
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      float v[8];
      value[i].Expand(v);
#pragma unroll
      for (int h = 0; h < kQueries; ++h) {
#pragma unroll
        for (int e = 0; e < 8; ++e) acc[h][e] = fmaf(score[h][i], v[e], acc[h][e]);
      }
    }
  }

  // Merges lane sets, then leaves each warp's sums in shared memory. Ends with a barrier.
  __device__ __forceinline__ void Reduce(Shared& shared) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < kQueries; ++h) {
#pragma unroll
      for (int w = kTokenLanes; w < 32; w *= 2) {
        const SoftmaxState other = {__shfl_xor_sync(0xffffffffu, state[h].max, w),
                                    __shfl_xor_sync(0xffffffffu, state[h].sum, w)};
        const MergeScales scales = Merge(state[h], other);
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          acc[h][e] =
              acc[h][e] * scales.into + __shfl_xor_sync(0xffffffffu, acc[h][e], w) * scales.from;
        }
      }
      if (lane < kTokenLanes) {
#pragma unroll
        for (int e = 0; e < 8; ++e) shared.acc[warp][h][lane * 8 + e] = acc[h][e];
        if (lane == 0) shared.state[warp][h] = state[h];
      }
    }
    __syncthreads();
  }

  // The whole block's state of query h, and the sum of its accumulator at element d; warps in
  // order.
  static __device__ __forceinline__ SoftmaxState BlockSum(const Shared& shared, int h, int d,
                                                          float* sum) {
    SoftmaxState whole = shared.state[0][h];
    float total = shared.acc[0][h][d];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) {
      const MergeScales scales = Merge(whole, shared.state[w][h]);
      total = total * scales.into + shared.acc[w][h][d] * scales.from;
    }
    *sum = total;
    return whole;
  }
};

// Calls body.template operator()<kTokenLanes>() with the lanes a key of `head_dim` elements needs.
template <typename Body>
OpStatus ForTokenLanes(int head_dim, const Body& body) {
  if (head_dim <= 32) return body.template operator()<4>();
  if (head_dim <= 64) return body.template operator()<8>();
  if (head_dim <= 128) return body.template operator()<16>();
  return body.template operator()<32>();
}

}  // namespace latchd::cuda
