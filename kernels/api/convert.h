#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/api/dtype.h"

// Conversions between f32 and the two 16-bit formats on the host, rounding to nearest even, with
// subnormals, infinities and NaN kept. Plain integer arithmetic without branches, so that a
// compiler vectorises the loops for any CPU; the results are those of the hardware instructions
// (x86 F16C, CUDA's __float2half_rn), which tests prove exhaustively.

namespace latchd {

inline float F16ToF32(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t shifted = static_cast<uint32_t>(half & 0x7fffu)
                           << 13;  // exponent and mantissa in f32's places
  const uint32_t exponent = shifted & 0x0f800000u;
  const uint32_t rebiased = shifted + 0x38000000u;  // + (127 - 15) << 23
  const uint32_t special = shifted | 0x7f800000u;   // infinity or NaN, payload kept
  // A subnormal is read as 2^-14 * (1 + mantissa), less 2^-14: exact, and no f32 subnormal is ever
  // touched.
  const float small =
      std::bit_cast<float>(shifted + 0x38800000u) - std::bit_cast<float>(0x38800000u);
  uint32_t magnitude = exponent == 0x0f800000u ? special : rebiased;
  magnitude = exponent == 0 ? std::bit_cast<uint32_t>(small) : magnitude;
  return std::bit_cast<float>(magnitude | sign);
}

inline uint16_t F32ToF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  // Normal: rebias the exponent and add half a unit, less one unless the kept part is odd. A carry
  // out of the mantissa raises the exponent, up to infinity for 65520 and above.
  const uint32_t normal = (magnitude + 0xc8000fffu + ((magnitude >> 13) & 1u)) >> 13;
  // Subnormal: adding 0.5 lets the FPU round the mantissa at bit 2^-24.
  const float aligned = std::bit_cast<float>(magnitude < 0x38800000u ? magnitude : 0u) + 0.5f;
  const uint32_t subnormal = std::bit_cast<uint32_t>(aligned) - 0x3f000000u;
  const uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  uint32_t half = magnitude < 0x38800000u ? subnormal : normal;
  half = magnitude >= 0x47800000u ? 0x7c00u : half;
  half = magnitude > 0x7f800000u ? nan : half;
  return static_cast<uint16_t>(half | sign);
}

inline float BF16ToF32(uint16_t value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
}

inline uint16_t F32ToBF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t nan =
      (bits >> 16) | 0x40u;  // keeps a payload that lies in the dropped bits from becoming infinity
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

// Converts `count` elements. `source` and `destination` must not overlap; 16-bit sides need
// alignment to 2 bytes only.
inline void ConvertToF32(DType dtype, const void* source, float* destination, size_t count) {
  const auto* words = static_cast<const uint16_t*>(source);
  switch (dtype) {
    case DType::kF32: std::memcpy(destination, source, count * sizeof(float)); return;
    case DType::kF16:
      for (size_t i = 0; i < count; ++i) destination[i] = F16ToF32(words[i]);
      return;
    case DType::kBF16:
      for (size_t i = 0; i < count; ++i) destination[i] = BF16ToF32(words[i]);
      return;
  }
}

inline void ConvertFromF32(DType dtype, const float* source, void* destination, size_t count) {
  auto* words = static_cast<uint16_t*>(destination);
  switch (dtype) {
    case DType::kF32: std::memcpy(destination, source, count * sizeof(float)); return;
    case DType::kF16:
      for (size_t i = 0; i < count; ++i) words[i] = F32ToF16(source[i]);
      return;
    case DType::kBF16:
      for (size_t i = 0; i < count; ++i) words[i] = F32ToBF16(source[i]);
      return;
  }
}

}  // namespace latchd
