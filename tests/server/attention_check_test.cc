#include "server/attention_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "kernels/api/convert.h"
#include "tests/server/attention_messages.h"

namespace latchd {
namespace {

using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int64_t kMaxMessage = 1 << 20;

using Open = v1::OpenAttentionSessionRequest;
using Call = v1::AttentionRequest;

// The message of a refusal, or "ok".
template <typename T>
std::string Said(const absl::StatusOr<T>& result) {
  if (result.ok()) return "ok";
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(result.status().message());
}

std::string SaidOpen(const std::function<void(Open&)>& edit) {
  Open request = OpenMessage();
  edit(request);
  return Said(CheckOpenAttention(request, kMaxMessage));
}

struct OpenCase {
  const char* says;  // "field: expected ..., got ..."
  std::function<void(Open&)> edit;
};

void Rotary(Open& r) {
  r.mutable_attributes()->set_do_rotary(true);
  *r.mutable_cos_cache() = F32Tensor({32, 4});
  *r.mutable_sin_cache() = F32Tensor({32, 4});
}
void Rope(Open& r) {
  r.mutable_attributes()->set_do_rotary(true);
  r.mutable_rope()->set_theta(10000);
}

TEST(CheckOpenAttention, TheBaseCaseAndTheVariantsPass) {
  EXPECT_EQ(SaidOpen([](Open&) {}), "ok");
  EXPECT_EQ(SaidOpen(Rotary), "ok");
  EXPECT_EQ(SaidOpen(Rope), "ok");
  EXPECT_EQ(SaidOpen([](Open& r) {
              Rotary(r);
              r.set_explicit_positions(true);
              *r.mutable_cos_cache() = F32Tensor({1, 1});
              *r.mutable_sin_cache() = F32Tensor({1, 1});
            }),
            "ok");
  EXPECT_EQ(SaidOpen([](Open& r) {
              r.mutable_attributes()->set_k_quant_type("NONE");
              r.mutable_attributes()->set_local_window_size(1);
              r.mutable_attributes()->set_softcap(30);
              r.mutable_attributes()->set_scale(-0.5f);
              *r.mutable_head_sink() = F32Tensor({4}, -kInf);
            }),
            "ok");
}

TEST(CheckOpenAttention, EveryRefusal) {
  const std::vector<OpenCase> cases = {
      {"attributes.num_heads: expected 1..1024, got 0",
       [](Open& r) { r.mutable_attributes()->set_num_heads(0); }},
      {"attributes.num_heads: expected 1..1024, got -4",
       [](Open& r) { r.mutable_attributes()->set_num_heads(-4); }},
      {"attributes.num_heads: expected 1..1024, got 9223372036854775807",
       [](Open& r) { r.mutable_attributes()->set_num_heads(INT64_MAX); }},
      {"attributes.kv_num_heads: expected 1..1024, got 0",
       [](Open& r) { r.mutable_attributes()->set_kv_num_heads(0); }},
      {"attributes.kv_num_heads: expected a divisor of num_heads 4, got 3",
       [](Open& r) { r.mutable_attributes()->set_kv_num_heads(3); }},
      {"attributes.kv_num_heads: expected a divisor of num_heads 4, got 8",
       [](Open& r) { r.mutable_attributes()->set_kv_num_heads(8); }},
      {"attributes.head_size: expected 1..256, got 0",
       [](Open& r) { r.mutable_attributes()->set_head_size(0); }},
      {"attributes.head_size: expected 1..256, got 257",
       [](Open& r) { r.mutable_attributes()->set_head_size(257); }},
      {"attributes.local_window_size: expected -1 (off) or 1..2147483647, got 0",
       [](Open& r) { r.mutable_attributes()->set_local_window_size(0); }},
      {"attributes.local_window_size: expected -1 (off) or 1..2147483647, got -2",
       [](Open& r) { r.mutable_attributes()->set_local_window_size(-2); }},
      {"attributes.softcap: expected a finite softcap >= 0, got -1",
       [](Open& r) { r.mutable_attributes()->set_softcap(-1); }},
      {"attributes.softcap: expected a finite softcap >= 0, got nan",
       [](Open& r) { r.mutable_attributes()->set_softcap(kNan); }},
      {"attributes.softcap: expected a finite softcap >= 0, got inf",
       [](Open& r) { r.mutable_attributes()->set_softcap(kInf); }},
      {"attributes.scale: expected a finite number, or 0 for 1 / sqrt(head_size), got nan",
       [](Open& r) { r.mutable_attributes()->set_scale(kNan); }},
      {"attributes.scale: expected a finite number, or 0 for 1 / sqrt(head_size), got -inf",
       [](Open& r) { r.mutable_attributes()->set_scale(-kInf); }},
      {"attributes.k_quant_type: expected NONE, since a quantized KV cache is not supported, got "
       "PER_TENSOR",
       [](Open& r) { r.mutable_attributes()->set_k_quant_type("PER_TENSOR"); }},
      {"attributes.v_quant_type: expected NONE, since a quantized KV cache is not supported, got "
       "another name",
       [](Open& r) { r.mutable_attributes()->set_v_quant_type("a client's own text"); }},
      {"attributes.kv_cache_bit_width: expected 0, since a quantized KV cache is not supported, "
       "got 8",
       [](Open& r) { r.mutable_attributes()->set_kv_cache_bit_width(8); }},
      {"attributes.qk_output: expected 0, since qk_output is not supported, got 1",
       [](Open& r) { r.mutable_attributes()->set_qk_output(1); }},
      {"dtype: expected f32, f16 or bf16, got no dtype",
       [](Open& r) { r.set_dtype(v1::ELEMENT_TYPE_UNSPECIFIED); }},
      {"dtype: expected f32, f16 or bf16, got i64",
       [](Open& r) { r.set_dtype(v1::ELEMENT_TYPE_I64); }},
      {"dtype: expected f32, f16 or bf16, got dtype 77",
       [](Open& r) { r.set_dtype(static_cast<v1::ElementType>(77)); }},
      {"batch: expected 1..1024, got 0", [](Open& r) { r.set_batch(0); }},
      {"batch: expected 1..1024, got 1025", [](Open& r) { r.set_batch(1025); }},
      {"layers: expected 1..1024, got 0", [](Open& r) { r.set_layers(0); }},
      {"layers: expected 1..1024, got 1025", [](Open& r) { r.set_layers(1025); }},
      {"capacity_tokens: expected 1..2147483646, got 0", [](Open& r) { r.set_capacity_tokens(0); }},
      {"capacity_tokens: expected 1..2147483646, got 2147483647",
       [](Open& r) { r.set_capacity_tokens(INT32_MAX); }},
      {"capacity_tokens: expected caches whose size fits 64 bits, got 2147483646",
       [](Open& r) {
         r.mutable_attributes()->set_num_heads(1024);
         r.mutable_attributes()->set_kv_num_heads(1024);
         r.mutable_attributes()->set_head_size(256);
         r.set_batch(1024);
         r.set_layers(1024);
         r.set_capacity_tokens(INT32_MAX - 1);
       }},
      {"batch: expected a step of at most 1044480 bytes, which the daemon's largest message holds, "
       "got 2097152 bytes",
       [](Open& r) {
         r.mutable_attributes()->set_head_size(256);
         r.set_batch(256);
       }},
      {"backend: expected unspecified (0), flash (1) or reference (2), got 9",
       [](Open& r) { r.set_backend(static_cast<Open::Backend>(9)); }},
      {"ttl_ms: expected ttl_ms >= 0, got -1", [](Open& r) { r.set_ttl_ms(-1); }},
      {"owner: expected at most 256 bytes, got 257",
       [](Open& r) { r.set_owner(std::string(257, 'x')); }},
      // Rotary caches.
      {"cos_cache: expected cos_cache and sin_cache, or rope, with do_rotary, got nothing",
       [](Open& r) { r.mutable_attributes()->set_do_rotary(true); }},
      {"sin_cache: expected both cos_cache and sin_cache, got cos_cache alone",
       [](Open& r) {
         Rotary(r);
         r.clear_sin_cache();
       }},
      {"cos_cache: expected both cos_cache and sin_cache, got sin_cache alone",
       [](Open& r) {
         Rotary(r);
         r.clear_cos_cache();
       }},
      {"rope: expected either rope or cos_cache and sin_cache, got both",
       [](Open& r) {
         Rotary(r);
         Rope(r);
       }},
      {"cos_cache: expected nothing without do_rotary, got a cache",
       [](Open& r) {
         *r.mutable_cos_cache() = F32Tensor({32, 4});
       }},
      {"sin_cache: expected nothing without do_rotary, got a cache",
       [](Open& r) {
         *r.mutable_sin_cache() = F32Tensor({32, 4});
       }},
      {"rope: expected nothing without do_rotary, got a rope",
       [](Open& r) { r.mutable_rope()->set_theta(10000); }},
      {"explicit_positions: expected false without do_rotary, got true",
       [](Open& r) { r.set_explicit_positions(true); }},
      {"cos_cache.dtype: expected f32, got f16",
       [](Open& r) {
         Rotary(r);
         *r.mutable_cos_cache() = ZeroTensor(v1::ELEMENT_TYPE_F16, {32, 4});
       }},
      {"cos_cache.dtype: expected f32 or f16, got bf16",
       [](Open& r) {
         Rotary(r);
         r.set_dtype(v1::ELEMENT_TYPE_BF16);
         *r.mutable_cos_cache() = ZeroTensor(v1::ELEMENT_TYPE_BF16, {32, 4});
       }},
      {"sin_cache.dtype: expected f16, got f32",
       [](Open& r) {
         Rotary(r);
         r.set_dtype(v1::ELEMENT_TYPE_F16);
         *r.mutable_cos_cache() = ZeroTensor(v1::ELEMENT_TYPE_F16, {32, 4});
       }},
      {"cos_cache.shape: expected [rows, rotary_dim/2] with 1 <= rows <= 2147483647 and 1 <= "
       "rotary_dim/2 <= 4, got [128]",
       [](Open& r) {
         Rotary(r);
         *r.mutable_cos_cache() = F32Tensor({128});
       }},
      {"rotary_dim/2 <= 4, got [32, 5]",
       [](Open& r) {
         Rotary(r);
         *r.mutable_cos_cache() = F32Tensor({32, 5});
       }},
      {"rotary_dim/2 <= 4, got [32, 0]",
       [](Open& r) {
         Rotary(r);
         *r.mutable_cos_cache() = F32Tensor({32, 0});
       }},
      {"rotary_dim/2 <= 4, got [0, 4]",
       [](Open& r) {
         Rotary(r);
         *r.mutable_cos_cache() = F32Tensor({0, 4});
       }},
      {"sin_cache.shape: expected [32, 4], got [32, 3]",
       [](Open& r) {
         Rotary(r);
         *r.mutable_sin_cache() = F32Tensor({32, 3});
       }},
      {"cos_cache.data: expected 512 bytes for f32 of shape [32, 4], got 511",
       [](Open& r) {
         Rotary(r);
         r.mutable_cos_cache()->mutable_data()->pop_back();
       }},
      {"rope.theta: expected a finite theta > 0, got 0",
       [](Open& r) {
         Rope(r);
         r.mutable_rope()->set_theta(0);
       }},
      {"rope.theta: expected a finite theta > 0, got nan",
       [](Open& r) {
         Rope(r);
         r.mutable_rope()->set_theta(kNan);
       }},
      {"rope.scaling: expected a finite scaling > 0, or 0 for 1, got -1",
       [](Open& r) {
         Rope(r);
         r.mutable_rope()->set_scaling(-1);
       }},
      {"rope.rotary_dim: expected an even number in 2..8, got 3",
       [](Open& r) {
         Rope(r);
         r.mutable_rope()->set_rotary_dim(3);
       }},
      {"rope.rotary_dim: expected an even number in 2..8, got 10",
       [](Open& r) {
         Rope(r);
         r.mutable_rope()->set_rotary_dim(10);
       }},
      {"rope.rotary_dim: expected an even number in 2..7, got 7",
       [](Open& r) {
         Rope(r);
         r.mutable_attributes()->set_head_size(7);
       }},
      {"rope.rows: expected rows >= 32 (the capacity) and <= 16777216, got 31",
       [](Open& r) {
         Rope(r);
         r.mutable_rope()->set_rows(31);
       }},
      {"rope.rows: expected rows >= 1 and <= 16777216, got -1",
       [](Open& r) {
         Rope(r);
         r.set_explicit_positions(true);
         r.mutable_rope()->set_rows(-1);
       }},
      {"rope.rows: expected rows >= 32 (the capacity) and <= 16777216, got 9223372036854775807",
       [](Open& r) {
         Rope(r);
         r.mutable_rope()->set_rows(INT64_MAX);
       }},
      // Sinks.
      {"head_sink.shape: expected [4], got [2]",
       [](Open& r) { *r.mutable_head_sink() = F32Tensor({2}); }},
      {"head_sink.shape: expected [4], got [1, 4]",
       [](Open& r) {
         *r.mutable_head_sink() = F32Tensor({1, 4});
       }},
      {"head_sink.dtype: expected f32, got i32",
       [](Open& r) { *r.mutable_head_sink() = ZeroTensor(v1::ELEMENT_TYPE_I32, {4}); }},
      {"head_sink[0]: expected a number below infinity, got nan",
       [](Open& r) { *r.mutable_head_sink() = F32Tensor({4}, kNan); }},
      {"head_sink: expected nothing with smooth_softmax, which is a sink of 0, got a sink",
       [](Open& r) {
         r.mutable_attributes()->set_smooth_softmax(true);
         *r.mutable_head_sink() = F32Tensor({4});
       }},
  };
  for (const OpenCase& c : cases) EXPECT_THAT(SaidOpen(c.edit), HasSubstr(c.says));
}

TEST(CheckOpenAttention, TheConfigHoldsWhatCame) {
  Open r = OpenMessage();
  Rope(r);
  r.set_dtype(v1::ELEMENT_TYPE_BF16);
  r.mutable_rope()->set_rotary_dim(4);
  r.mutable_rope()->set_scaling(2);
  r.mutable_rope()->set_rows(40);
  r.mutable_attributes()->set_rotary_interleaved(true);
  r.mutable_attributes()->set_softcap(30);
  r.set_backend(Open::BACKEND_REFERENCE);
  r.set_ttl_ms(1500);
  r.set_owner("me");
  const auto config = CheckOpenAttention(r, kMaxMessage);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->dtype, DType::kBF16);
  EXPECT_EQ(config->batch, 2);
  EXPECT_EQ(config->local_window_size, -1) << "unset";
  EXPECT_EQ(config->softcap, 30.0f);
  EXPECT_TRUE(config->rotary_interleaved);
  EXPECT_EQ(config->backend, AttentionBackend::kReference);
  EXPECT_EQ(config->ttl, absl::Milliseconds(1500));
  EXPECT_EQ(config->rotary_dim, 4);
  ASSERT_EQ(config->rotary_rows, 40);
  ASSERT_EQ(config->cos_cache.size(), 80u);
  for (int p = 0; p < 40; ++p) {
    for (int i = 0; i < 2; ++i) {
      const double angle = p / 2.0 * std::pow(10000.0, -2.0 * i / 4);
      EXPECT_EQ(config->cos_cache[p * 2 + i], static_cast<float>(std::cos(angle))) << p << i;
      EXPECT_EQ(config->sin_cache[p * 2 + i], static_cast<float>(std::sin(angle))) << p << i;
    }
  }
}

TEST(CheckOpenAttention, AHalfCacheIsWidened) {
  Open r = OpenMessage();
  Rotary(r);
  r.set_dtype(v1::ELEMENT_TYPE_F16);
  v1::Tensor half = ZeroTensor(v1::ELEMENT_TYPE_F16, {32, 3});
  const uint16_t value = F32ToF16(0.333f);
  std::memcpy(half.mutable_data()->data() + 2 * 5, &value, 2);
  *r.mutable_cos_cache() = half;
  *r.mutable_sin_cache() = ZeroTensor(v1::ELEMENT_TYPE_F16, {32, 3});
  const auto config = CheckOpenAttention(r, kMaxMessage);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rotary_dim, 6);
  EXPECT_EQ(config->cos_cache[5], F16ToF32(value));
}

TEST(MaxImportBytes, IsAboveTheCaches) {
  const auto config = CheckOpenAttention(OpenMessage(), kMaxMessage);
  ASSERT_TRUE(config.ok());
  const int64_t caches = 2 * 3 * (2 * 2 * 32 * 8 * 4);
  EXPECT_GT(MaxImportBytes(*config), caches);
  EXPECT_LT(MaxImportBytes(*config), caches + (1 << 17));
}

}  // namespace
}  // namespace latchd
