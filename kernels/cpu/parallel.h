#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/worker_team.h"

// Parallel loops of the CPU kernels. The number of threads never changes a result: work is cut by
// shape, not by thread.

namespace latchd::cpu {

inline int MaxThreads() { return Threads(); }

// Work that touches fewer bytes stays on the calling thread: waking helpers costs microseconds.
inline constexpr int64_t kWorthwhileBytes = 64 << 10;

// Calls body(index, thread) for each of [0, count), handing out indices as threads become free.
template <typename Body>
void ParallelItems(int64_t count, int64_t bytes, int threads, const Body& body) {
  if (threads > 1 && count > 1 && bytes >= kWorthwhileBytes) {
    const Piece run = [](const void* context, int64_t piece, int thread) {
      (*static_cast<const Body*>(context))(piece, thread);
    };
    RunPieces(count, threads, run, &body);
    return;
  }
  for (int64_t i = 0; i < count; ++i) body(i, 0);
}

// Calls body(begin, end, thread) on contiguous parts of [0, count): a few for each thread, so that
// one that is slower takes fewer, and each long enough for the hardware to prefetch along it.
// `bytes`: what all of it touches.
template <typename Body>
void ParallelRanges(int64_t count, int64_t bytes, int threads, const Body& body) {
  constexpr int64_t kPartsPerThread = 4;
  const int64_t parts = std::min(
      {count, threads * kPartsPerThread, std::max<int64_t>(1, bytes / (kWorthwhileBytes / 2))});
  ParallelItems(parts, bytes, threads, [&](int64_t part, int thread) {
    body(count * part / parts, count * (part + 1) / parts, thread);
  });
}

}  // namespace latchd::cpu
