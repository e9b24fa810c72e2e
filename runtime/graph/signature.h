#pragma once

#include <cstdint>
#include <string>

#include "kernels/api/dtype.h"

namespace latchd {

// Everything a captured step bakes in. Two steps may share a graph exactly when their signatures
// are equal; whatever is not here must be read from the device tables. Hashable and comparable as a
// value.
struct Signature {
  std::string backend;  // "cpu", "cuda"
  DType dtype = DType::kF32;
  int32_t rows = 0;
  int32_t q_sequence = 1;
  int32_t k_sequence = 1;
  int32_t layers = 0;
  int32_t hidden = 0;
  int32_t q_heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t feed_forward = 0;
  int32_t vocab = 0;
  int64_t past_capacity = 0;  // tokens; equal to present_capacity: KV is updated in place
  int64_t present_capacity = 0;
  int32_t page_tokens = 0;
  int32_t pool_pages = 0;
  int32_t rotary_rows = 0;
  int32_t window = -1;
  bool packed_qkv = true;
  bool explicit_positions = false;

  bool operator==(const Signature&) const = default;

  template <typename H>
  friend H AbslHashValue(H h, const Signature& s) {
    return H::combine(std::move(h), s.backend, s.dtype, s.rows, s.q_sequence, s.k_sequence,
                      s.layers, s.hidden, s.q_heads, s.kv_heads, s.head_dim, s.feed_forward,
                      s.vocab, s.past_capacity, s.present_capacity, s.page_tokens, s.pool_pages,
                      s.rotary_rows, s.window, s.packed_qkv, s.explicit_positions);
  }

  // "cpu bf16 rows=4 q=1 k=1 layers=16 hidden=2048 heads=32/8x64 ff=8192 vocab=128256 capacity=8192
  // ..."
  std::string ToString() const;
};

}  // namespace latchd
