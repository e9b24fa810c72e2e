#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/api/dtype.h"
#include "kernels/api/invariants.h"

namespace latchd {

// One layer of the paged KV cache. A page holds page_tokens tokens of every KV head, BNSH inside
// the page. A page id is the same for all layers, so one page table serves the whole model. A
// contiguous BNSH cache is the special case of one page per slot (page_shift = 31, page_tokens =
// capacity). Bytes beyond a slot's valid length are undefined: kernels must not read them into
// results.
struct KvView {
  void* key;                  // [pool_pages, kv_heads, page_tokens, head_dim] of dtype
  void* value;                // same shape
  const int32_t* page_table;  // [slots, max_pages]; entries beyond the slot's reservation are -1
  int32_t max_pages;
  int32_t pool_pages;
  int32_t page_shift;   // token t of a slot lives in page page_table[slot, t >> page_shift]
  int32_t page_tokens;  // stride between heads inside a page; 1 << page_shift unless contiguous
  int32_t kv_heads;
  int32_t head_dim;
  DType dtype;

  // Element offset of [slot, head, token, 0]. REQUIRES: the metadata op has checked the slot's page
  // table up to token.
  LATCHD_HOST_DEVICE size_t Offset(int32_t slot, int32_t head, int32_t token) const {
    const int32_t page = page_table[static_cast<size_t>(slot) * max_pages + (token >> page_shift)];
    const int32_t in_page = token & static_cast<int32_t>((1u << page_shift) - 1);
    return ((static_cast<size_t>(page) * kv_heads + head) * page_tokens + in_page) * head_dim;
  }
};

}  // namespace latchd
