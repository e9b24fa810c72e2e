#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "kernels/api/dtype.h"

namespace latchd {

// Element formats of model files that latchd reads. The quantised ones are ggml's block formats
// (ggml-common.h of llama.cpp): a fixed number of consecutive elements of a row share one block.
enum class StorageType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ4_K,
  kQ5_K,
  kQ6_K,
};

struct StorageTraits {
  std::string_view name;
  int64_t block_elements;  // a row's length must be a multiple
  int64_t block_bytes;
};

inline constexpr std::array<StorageTraits, 11> kStorageTraits = {{
    {"F32", 1, 4},
    {"F16", 1, 2},
    {"BF16", 1, 2},
    {"Q8_0", 32, 34},
    {"Q4_0", 32, 18},
    {"Q4_1", 32, 20},
    {"Q5_0", 32, 22},
    {"Q5_1", 32, 24},
    {"Q4_K", 256, 144},
    {"Q5_K", 256, 176},
    {"Q6_K", 256, 210},
}};

constexpr const StorageTraits& Traits(StorageType type) {
  return kStorageTraits[static_cast<size_t>(type)];
}
constexpr bool IsQuantised(StorageType type) { return Traits(type).block_elements > 1; }

// Writes `elements` f32 values. Pure; `source` needs no alignment. REQUIRES: elements is a multiple
// of the type's block_elements, and source holds elements / block_elements blocks.
void Dequantize(StorageType type, const void* source, int64_t elements, float* out);

// The same, as `as` (round to nearest even; overflow to infinity as IEEE 754 has it). Copies when
// nothing changes.
void DequantizeAs(StorageType type, const void* source, int64_t elements, DType as, void* out);

}  // namespace latchd
