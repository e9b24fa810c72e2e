#pragma once

#include <algorithm>
#include <cstdint>

#if defined(_OPENMP)
#include <omp.h>
#endif

// Threads for the CPU kernels. Every region uses the whole team or, for little work, no team at
// all: a team that shrinks makes GNU OpenMP end threads and start them again at the next region.
// The number of threads never changes a result: work is cut by shape, not by thread.

namespace latchd::cpu {

// Threads of the next region, as the caller set them with omp_set_num_threads (which counts per
// calling thread).
inline int MaxThreads() {
#if defined(_OPENMP)
  return omp_get_max_threads();
#else
  return 1;
#endif
}

// Work that touches fewer bytes stays on the calling thread: opening a region costs about 2 us.
inline constexpr int64_t kWorthwhileBytes = 64 << 10;

// Calls body(begin, end, thread) on contiguous parts of [0, count), one for each thread. `bytes`:
// what all of it touches.
template <typename Body>
void ParallelRanges(int64_t count, int64_t bytes, int threads, const Body& body) {
#if defined(_OPENMP)
  if (threads > 1 && count > 1 && bytes >= kWorthwhileBytes) {
#pragma omp parallel num_threads(threads)
    {
      const int64_t team = omp_get_num_threads();
      const int64_t thread = omp_get_thread_num();
      const int64_t begin = count * thread / team;
      const int64_t end = count * (thread + 1) / team;
      if (begin < end) body(begin, end, static_cast<int>(thread));
    }
    return;
  }
#endif
  if (count > 0) body(int64_t{0}, count, 0);
}

// Calls body(index, thread) for each of [0, count), handing out indices as threads become free: for
// work of uneven cost.
template <typename Body>
void ParallelItems(int64_t count, int64_t bytes, int threads, const Body& body) {
#if defined(_OPENMP)
  if (threads > 1 && count > 1 && bytes >= kWorthwhileBytes) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t i = 0; i < count; ++i) body(i, omp_get_thread_num());
    return;
  }
#endif
  for (int64_t i = 0; i < count; ++i) body(i, 0);
}

}  // namespace latchd::cpu
