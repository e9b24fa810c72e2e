#pragma once

#include <cooperative_groups.h>

#include "kernels/cuda/common/device.cuh"

// Reductions over a cluster of blocks that work on one row together. Results are the same on every
// run: the order is lanes, warps, blocks, each fixed, and sums that decide something are integers.

namespace latchd::cuda {

inline constexpr int kClusterBlocks = 8;
inline constexpr int kClusterBlockThreads = 1024;
inline constexpr int kClusterThreads = kClusterBlocks * kClusterBlockThreads;
inline constexpr int kBins = 16;

struct ClusterScratch {
  uint4 warp_value[32];
  uint4 block_value[2];  // by parity: a block may run one reduction ahead of its readers
  uint4 result;
  uint64_t warp_bins[32][kBins];
  uint64_t block_bins[2][kBins];
  uint64_t bins[kBins];
};

__device__ __forceinline__ uint4 ShuffleXor(uint4 v, int width) {
  return make_uint4(__shfl_xor_sync(~0u, v.x, width), __shfl_xor_sync(~0u, v.y, width),
                    __shfl_xor_sync(~0u, v.z, width), __shfl_xor_sync(~0u, v.w, width));
}

class Cluster {
 public:
  __device__ explicit Cluster(ClusterScratch& scratch)
      : scratch_(scratch), group_(cooperative_groups::this_cluster()), rank_(group_.block_rank()) {}

  __device__ unsigned rank() const { return rank_; }
  __device__ int thread() const {
    return static_cast<int>(rank_ * kClusterBlockThreads + threadIdx.x);
  }
  __device__ void Sync() { group_.sync(); }

  // combine(a, b) over all threads of the cluster, the same value for all. V is 16 bytes of plain
  // data.
  template <typename V, typename Combine>
  __device__ V Reduce(V value, Combine combine) {
    static_assert(sizeof(V) == 16);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    value = WarpReduce<32>(value, combine);
    if (lane == 0) scratch_.warp_value[warp] = AsWords(value);
    __syncthreads();
    if (warp == 0) {
      value = WarpReduce<32>(AsValue<V>(scratch_.warp_value[lane]), combine);
      if (lane == 0) scratch_.block_value[parity_] = AsWords(value);
    }
    group_.sync();
    if (warp == 0) {
      const uint4* remote =
          group_.map_shared_rank(&scratch_.block_value[parity_], lane % kClusterBlocks);
      value = WarpReduce<kClusterBlocks>(AsValue<V>(*remote), combine);
      if (lane == 0) scratch_.result = AsWords(value);
    }
    __syncthreads();
    parity_ ^= 1;
    return AsValue<V>(scratch_.result);
  }

  // Sums 16 bins of all threads; afterwards scratch.bins holds the totals.
  __device__ void SumBins(uint64_t (&bin)[kBins]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    // Each step halves the bins a lane cares for; at the end lane l holds bin l / 2.
#pragma unroll
    for (int n = kBins / 2; n > 0; n /= 2) {
      const bool upper = (lane & (2 * n)) != 0;
#pragma unroll
      for (int i = 0; i < kBins / 2; ++i) {
        if (i >= n) break;
        const uint64_t send = upper ? bin[i] : bin[i + n], keep = upper ? bin[i + n] : bin[i];
        bin[i] = keep + __shfl_xor_sync(~0u, send, 2 * n);
      }
    }
    bin[0] += __shfl_xor_sync(~0u, bin[0], 1);
    if (lane % 2 == 0) scratch_.warp_bins[warp][lane / 2] = bin[0];
    __syncthreads();
    if (threadIdx.x < kBins) {
      uint64_t sum = 0;
      for (int w = 0; w < kClusterBlockThreads / 32; ++w) sum += scratch_.warp_bins[w][threadIdx.x];
      scratch_.block_bins[parity_][threadIdx.x] = sum;
    }
    group_.sync();
    if (threadIdx.x < kBins) {
      uint64_t sum = 0;
      for (unsigned b = 0; b < kClusterBlocks; ++b) {
        sum += *group_.map_shared_rank(&scratch_.block_bins[parity_][threadIdx.x], b);
      }
      scratch_.bins[threadIdx.x] = sum;
    }
    __syncthreads();
    parity_ ^= 1;
  }

  __device__ const ClusterScratch& scratch() const { return scratch_; }

 private:
  template <typename V>
  static __device__ uint4 AsWords(const V& v) {
    return *reinterpret_cast<const uint4*>(&v);
  }
  template <typename V>
  static __device__ V AsValue(const uint4& words) {
    return *reinterpret_cast<const V*>(&words);
  }
  template <int kWidth, typename V, typename Combine>
  static __device__ V WarpReduce(V value, Combine combine) {
#pragma unroll
    for (int w = kWidth / 2; w > 0; w /= 2)
      value = combine(value, AsValue<V>(ShuffleXor(AsWords(value), w)));
    return value;
  }

  ClusterScratch& scratch_;
  cooperative_groups::cluster_group group_;
  unsigned rank_;
  int parity_ = 0;
};

}  // namespace latchd::cuda
