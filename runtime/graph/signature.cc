#include "runtime/graph/signature.h"

#include "absl/strings/str_cat.h"

namespace latchd {

std::string Signature::ToString() const {
  return absl::StrCat(backend, " ", std::string(Name(dtype)), " rows=", rows, " q=", q_sequence,
                      " k=", k_sequence, " layers=", layers, " hidden=", hidden, " heads=", q_heads,
                      "/", kv_heads, "x", head_dim, " ff=", feed_forward, " vocab=", vocab,
                      " past=", past_capacity, " present=", present_capacity, " page=", page_tokens,
                      " pool=", pool_pages, " rotary=", rotary_rows, " window=", window,
                      packed_qkv ? " packed" : " split", explicit_positions ? " positions" : "");
}

}  // namespace latchd
