#pragma once

#include <cblas.h>

#include <mutex>

namespace latchd::cpu {

// Our threads each call a single-threaded product; OpenBLAS's own threads would fight with them for
// the cores. Process-wide; once is enough.
inline void UseSingleThreadedBlas() {
  static std::once_flag once;
  std::call_once(once, [] { openblas_set_num_threads(1); });
}

}  // namespace latchd::cpu
