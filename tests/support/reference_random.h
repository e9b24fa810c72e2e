#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "kernels/api/convert.h"
#include "kernels/api/kv_view.h"
#include "kernels/api/step_tables.h"

namespace latchd::reference {

// Fresh random data for each run; LATCHD_TEST_SEED repeats one. Use SCOPED_TRACE(random.note()) to
// print the seed.
class Random {
 public:
  Random() {
    const char* given = std::getenv("LATCHD_TEST_SEED");
    seed_ = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
    engine_.seed(seed_);
  }
  std::string note() const { return "LATCHD_TEST_SEED=" + std::to_string(seed_); }

  int32_t Int(int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(engine_);
  }
  bool Chance(double p) { return std::bernoulli_distribution(p)(engine_); }
  float Normal(float deviation = 1.0f) {
    return std::normal_distribution<float>(0.0f, deviation)(engine_);
  }
  uint64_t Word() { return engine_(); }

  std::vector<float> Normals(size_t count, float deviation = 1.0f) {
    std::vector<float> values(count);
    for (float& v : values) v = Normal(deviation);
    return values;
  }
  template <typename T>
  void Shuffle(std::vector<T>& values) {
    std::shuffle(values.begin(), values.end(), engine_);
  }

 private:
  uint64_t seed_;
  std::mt19937_64 engine_;
};

// `values` stored as `dtype`.
inline std::vector<char> Encode(DType dtype, const std::vector<float>& values) {
  std::vector<char> bytes(values.size() * SizeOf(dtype));
  ConvertFromF32(dtype, values.data(), bytes.data(), values.size());
  return bytes;
}

// A KV pool whose every element is NaN, with `slots` slots of `max_pages` scrambled, non-contiguous
// pages each.
class PagedKv {
 public:
  PagedKv(Random& random, DType dtype, int32_t slots, int32_t max_pages, int32_t page_shift,
          int32_t kv_heads, int32_t head_dim) {
    const int32_t page_tokens = 1 << page_shift;
    const int32_t pool_pages = slots * max_pages + 5;
    std::vector<int32_t> pages(static_cast<size_t>(pool_pages));
    for (int32_t p = 0; p < pool_pages; ++p) pages[static_cast<size_t>(p)] = p;
    random.Shuffle(pages);
    table_.assign(pages.begin(), pages.begin() + slots * max_pages);
    const size_t elements =
        static_cast<size_t>(pool_pages) * static_cast<size_t>(kv_heads * page_tokens * head_dim);
    key_ = value_ = Encode(dtype, std::vector<float>(elements, NAN));
    view_ = {key_.data(), value_.data(), table_.data(), max_pages, pool_pages,
             page_shift,  page_tokens,   kv_heads,      head_dim,  dtype};
  }
  PagedKv(const PagedKv&) = delete;

  // Random keys and values for tokens [0, total) of a slot.
  void Fill(Random& random, int32_t slot, int32_t total) {
    for (int32_t t = 0; t < total; ++t) {
      for (int32_t h = 0; h < view_.kv_heads; ++h) {
        const size_t at = view_.Offset(slot, h, t) * SizeOf(view_.dtype);
        const size_t count = static_cast<size_t>(view_.head_dim);
        ConvertFromF32(view_.dtype, random.Normals(count).data(), key_.data() + at, count);
        ConvertFromF32(view_.dtype, random.Normals(count).data(), value_.data() + at, count);
      }
    }
  }
  const KvView& view() const { return view_; }
  std::vector<char>& key() { return key_; }
  std::vector<char>& value() { return value_; }

 private:
  std::vector<int32_t> table_;
  std::vector<char> key_, value_;
  KvView view_;
};

inline RowMeta Skipped() { return {-1, -1, -1, -1, -1, 0}; }

}  // namespace latchd::reference
