#include "runtime/model/dequantize.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/api/convert.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// Block layouts follow ggml-common.h, arithmetic follows dequantize_row_* of ggml-quants.c in order
// of operations, so that results equal ggml's bit for bit. Bytes are read one by one or by memcpy:
// blocks have odd sizes and no alignment.

namespace latchd {
namespace {

constexpr int kBlock = 32;        // elements of a Q4_0 .. Q8_0 block
constexpr int kSuperBlock = 256;  // elements of a K-quant block

uint16_t Load16(const uint8_t* p) {
  uint16_t value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

float LoadF16(const uint8_t* p) { return F16ToF32(Load16(p)); }

void BlockQ8_0(const uint8_t* b, float* out) {
  const float d = LoadF16(b);
  for (int i = 0; i < kBlock; ++i) out[i] = static_cast<float>(static_cast<int8_t>(b[2 + i])) * d;
}

void BlockQ4_0(const uint8_t* b, float* out) {
  const float d = LoadF16(b);
  const uint8_t* q = b + 2;
  for (int i = 0; i < kBlock / 2; ++i) {
    out[i] = d * static_cast<float>((q[i] & 15) - 8);
    out[i + kBlock / 2] = d * static_cast<float>((q[i] >> 4) - 8);
  }
}

void BlockQ4_1(const uint8_t* b, float* out) {
  const float d = LoadF16(b), m = LoadF16(b + 2);
  const uint8_t* q = b + 4;
  for (int i = 0; i < kBlock / 2; ++i) {
    out[i] = d * static_cast<float>(q[i] & 15) + m;
    out[i + kBlock / 2] = d * static_cast<float>(q[i] >> 4) + m;
  }
}

// Bit i of the little-endian word `high` is bit 4 of element i.
void BlockQ5_0(const uint8_t* b, float* out) {
  const float d = LoadF16(b);
  uint32_t high;
  std::memcpy(&high, b + 2, sizeof(high));
  const uint8_t* q = b + 6;
  for (int i = 0; i < kBlock / 2; ++i) {
    out[i] = d * static_cast<float>(static_cast<int>((q[i] & 15) | ((high >> i & 1) << 4)) - 16);
    out[i + kBlock / 2] =
        d * static_cast<float>(static_cast<int>((q[i] >> 4) | ((high >> (i + 16) & 1) << 4)) - 16);
  }
}

void BlockQ5_1(const uint8_t* b, float* out) {
  const float d = LoadF16(b), m = LoadF16(b + 2);
  uint32_t high;
  std::memcpy(&high, b + 4, sizeof(high));
  const uint8_t* q = b + 8;
  for (int i = 0; i < kBlock / 2; ++i) {
    out[i] = d * static_cast<float>((q[i] & 15) | ((high >> i & 1) << 4)) + m;
    out[i + kBlock / 2] = d * static_cast<float>((q[i] >> 4) | ((high >> (i + 16) & 1) << 4)) + m;
  }
}

struct ScaleMin {
  float scale, min;
};

// The j-th of eight pairs of 6-bit (scale, min) packed in 12 bytes (get_scale_min_k4 in
// ggml-quants.c).
ScaleMin PackedScaleMin(const uint8_t* s, int j) {
  if (j < 4) return {static_cast<float>(s[j] & 63), static_cast<float>(s[j + 4] & 63)};
  return {static_cast<float>((s[j + 4] & 15) | ((s[j - 4] >> 6) << 4)),
          static_cast<float>((s[j + 4] >> 4) | ((s[j] >> 6) << 4))};
}

// d, dmin, scales[12], q[128]: each 32 bytes of q hold 32 low nibbles, then 32 high ones.
void BlockQ4_K(const uint8_t* b, float* out) {
  const float d = LoadF16(b), dmin = LoadF16(b + 2);
  const uint8_t* scales = b + 4;
  const uint8_t* q = b + 16;
  for (int j = 0; j < kSuperBlock / 32; ++j) {
    const ScaleMin packed = PackedScaleMin(scales, j);
    const float scale = d * packed.scale, min = dmin * packed.min;
    const int shift = (j & 1) * 4;
    const uint8_t* part = q + (j / 2) * 32;
    for (int i = 0; i < 32; ++i)
      out[j * 32 + i] = scale * static_cast<float>(part[i] >> shift & 15) - min;
  }
}

// As Q4_K with high[32] before q: bit j of high[i] is bit 4 of element i of the j-th group of 32.
void BlockQ5_K(const uint8_t* b, float* out) {
  const float d = LoadF16(b), dmin = LoadF16(b + 2);
  const uint8_t* scales = b + 4;
  const uint8_t* high = b + 16;
  const uint8_t* q = b + 48;
  for (int j = 0; j < kSuperBlock / 32; ++j) {
    const ScaleMin packed = PackedScaleMin(scales, j);
    const float scale = d * packed.scale, min = dmin * packed.min;
    const int shift = (j & 1) * 4;
    const uint8_t* part = q + (j / 2) * 32;
    for (int i = 0; i < 32; ++i) {
      out[j * 32 + i] =
          scale * static_cast<float>((part[i] >> shift & 15) | (high[i] >> j & 1) << 4) - min;
    }
  }
}

// low[128], high[64], scales int8[16] (one per 16 elements), d. Each half of 128 elements: four
// groups of 32 take nibbles of low and bit pairs of high.
void BlockQ6_K(const uint8_t* b, float* out) {
  const float d = LoadF16(b + 208);
  for (int half = 0; half < 2; ++half) {
    const uint8_t* low = b + half * 64;
    const uint8_t* high = b + 128 + half * 32;
    const uint8_t* scales = b + 192 + half * 8;
    for (int group = 0; group < 4; ++group) {
      const uint8_t* part = low + (group & 1) * 32;
      const int nibble = (group / 2) * 4;
      for (int sixteen = 0; sixteen < 2; ++sixteen) {
        const float scale =
            d * static_cast<float>(static_cast<int8_t>(scales[group * 2 + sixteen]));
        float* y = out + half * 128 + group * 32 + sixteen * 16;
        for (int i = 0; i < 16; ++i) {
          const int at = sixteen * 16 + i;
          const int q = (part[at] >> nibble & 15) | (high[at] >> (group * 2) & 3) << 4;
          y[i] = scale * static_cast<float>(q - 32);
        }
      }
    }
  }
}

template <void (*Block)(const uint8_t*, float*), StorageType kType>
void Blocks(const void* source, int64_t elements, float* out) {
  constexpr StorageTraits kTraits = Traits(kType);
  const auto* b = static_cast<const uint8_t*>(source);
  for (int64_t i = 0; i < elements; i += kTraits.block_elements, b += kTraits.block_bytes)
    Block(b, out + i);
}

constexpr int64_t kChunkElements =
    2048;  // a multiple of every block; 8 KiB of f32 stays in the L1 cache

// 16-bit source of any alignment: convert.h wants 2-byte alignment, which a hostile header can
// deny.
void DequantizeWords(DType type, const void* source, int64_t elements, float* out) {
  if (reinterpret_cast<uintptr_t>(source) % alignof(uint16_t) == 0) {
    ConvertToF32(type, source, out, static_cast<size_t>(elements));
    return;
  }
  uint16_t aligned[kChunkElements];
  const auto* bytes = static_cast<const char*>(source);
  for (int64_t i = 0; i < elements; i += kChunkElements) {
    const int64_t n = std::min(kChunkElements, elements - i);
    std::memcpy(aligned, bytes + i * 2, static_cast<size_t>(n) * 2);
    ConvertToF32(type, aligned, out + i, static_cast<size_t>(n));
  }
}

// f32 to f16 with the CPU's instruction where it has one: GCC does not vectorise the portable loop,
// which then takes most of a load. Both give the same bits. Compiling all loops here for AVX2 as
// well was tried and gained nothing.
#if defined(__x86_64__)
__attribute__((target("avx2,f16c"))) void NarrowF16c(const float* in, uint16_t* out, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), half);
  }
  for (; i < n; ++i) out[i] = F32ToF16(in[i]);
}
#endif

void Narrow(DType as, const float* in, uint16_t* out, int64_t n) {
#if defined(__x86_64__)
  // Every CPU with AVX2 has F16C, whose name clang 14's builtin does not know.
  static const bool has_f16c = __builtin_cpu_supports("avx2");
  if (as == DType::kF16 && has_f16c) {
    NarrowF16c(in, out, n);
    return;
  }
#endif
  ConvertFromF32(as, in, out, static_cast<size_t>(n));
}

bool IsPlainCopy(StorageType type, DType as) {
  return (type == StorageType::kF32 && as == DType::kF32) ||
         (type == StorageType::kF16 && as == DType::kF16) ||
         (type == StorageType::kBF16 && as == DType::kBF16);
}

}  // namespace

void Dequantize(StorageType type, const void* source, int64_t elements, float* out) {
  switch (type) {
    case StorageType::kF32:
      std::memcpy(out, source, static_cast<size_t>(elements) * sizeof(float));
      return;
    case StorageType::kF16: DequantizeWords(DType::kF16, source, elements, out); return;
    case StorageType::kBF16: DequantizeWords(DType::kBF16, source, elements, out); return;
    case StorageType::kQ8_0: Blocks<BlockQ8_0, StorageType::kQ8_0>(source, elements, out); return;
    case StorageType::kQ4_0: Blocks<BlockQ4_0, StorageType::kQ4_0>(source, elements, out); return;
    case StorageType::kQ4_1: Blocks<BlockQ4_1, StorageType::kQ4_1>(source, elements, out); return;
    case StorageType::kQ5_0: Blocks<BlockQ5_0, StorageType::kQ5_0>(source, elements, out); return;
    case StorageType::kQ5_1: Blocks<BlockQ5_1, StorageType::kQ5_1>(source, elements, out); return;
    case StorageType::kQ4_K: Blocks<BlockQ4_K, StorageType::kQ4_K>(source, elements, out); return;
    case StorageType::kQ5_K: Blocks<BlockQ5_K, StorageType::kQ5_K>(source, elements, out); return;
    case StorageType::kQ6_K: Blocks<BlockQ6_K, StorageType::kQ6_K>(source, elements, out); return;
  }
}

void DequantizeAs(StorageType type, const void* source, int64_t elements, DType as, void* out) {
  const StorageTraits& traits = Traits(type);
  if (IsPlainCopy(type, as)) {
    std::memcpy(out, source, static_cast<size_t>(elements * traits.block_bytes));
    return;
  }
  if (as == DType::kF32) {
    Dequantize(type, source, elements, static_cast<float*>(out));
    return;
  }
  // Through f32 in chunks that stay in the cache.
  float chunk[kChunkElements];
  const auto* bytes = static_cast<const char*>(source);
  auto* words = static_cast<uint16_t*>(out);
  for (int64_t i = 0; i < elements; i += kChunkElements) {
    const int64_t n = std::min(kChunkElements, elements - i);
    Dequantize(type, bytes + i / traits.block_elements * traits.block_bytes, n, chunk);
    Narrow(as, chunk, words + i, n);
  }
}

}  // namespace latchd
