#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace latchd {

// Element type of a tensor as latchd computes with it. Quantised file formats are dequantised at
// load.
enum class DType : uint8_t { kF32 = 0, kF16 = 1, kBF16 = 2 };

constexpr size_t SizeOf(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

constexpr std::string_view Name(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "f32";
    case DType::kF16: return "f16";
    case DType::kBF16: return "bf16";
  }
  return "?";
}

}  // namespace latchd
