#pragma once

#include <cstdint>

#include "kernels/api/invariants.h"  // LATCHD_HOST_DEVICE

// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011), the same on host and device. A draw is a pure function of key and counter, so
// sampling needs no generator state and cannot depend on batch, order or thread count.

namespace latchd {

struct Philox4x32 {
  uint32_t v[4];
};

LATCHD_HOST_DEVICE inline Philox4x32 Philox(uint64_t key, uint64_t counter_low,
                                            uint64_t counter_high) {
  uint32_t c0 = static_cast<uint32_t>(counter_low), c1 = static_cast<uint32_t>(counter_low >> 32);
  uint32_t c2 = static_cast<uint32_t>(counter_high), c3 = static_cast<uint32_t>(counter_high >> 32);
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(0xD2511F53u) * c0;
    const uint64_t p1 = static_cast<uint64_t>(0xCD9E8D57u) * c2;
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c0 = n0;
    c1 = static_cast<uint32_t>(p1);
    c2 = n2;
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;  // golden ratio
    k1 += 0xBB67AE85u;  // sqrt(3) - 1
  }
  return {{c0, c1, c2, c3}};
}

// Uniform in the open interval (0, 1): the centres of 2^23 equal cells, so that log(u) and
// log(-log(u)) are finite. Every step is exact in f32, hence equal on host and device.
LATCHD_HOST_DEVICE inline float UniformOpen(uint32_t bits) {
  return (static_cast<float>(bits >> 9) + 0.5f) * 1.1920928955078125e-7f;  // 2^-23
}

// The draw of one candidate token for the position after `past`. The Gumbel noise is -log(-log(u)).
LATCHD_HOST_DEVICE inline float TokenUniform(uint64_t seed, int32_t past, int32_t token) {
  const Philox4x32 r = Philox(seed, static_cast<uint32_t>(past), static_cast<uint32_t>(token));
  return UniformOpen(r.v[0]);
}

}  // namespace latchd
