#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <random>

#include "server/attention_check.h"
#include "tests/server/attention_messages.h"

namespace latchd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kMaxMessage = 1 << 20;
constexpr auto kStep = AttentionCallKind::kStep;
constexpr auto kPrefill = AttentionCallKind::kPrefill;

using Open = v1::OpenAttentionSessionRequest;
using Call = v1::AttentionRequest;

AttentionConfig Config(const std::function<void(Open&)>& edit = [](Open&) {}) {
  Open request = OpenMessage();
  edit(request);
  const auto config = CheckOpenAttention(request, kMaxMessage);
  EXPECT_TRUE(config.ok()) << config.status();
  return *config;
}
void Explicit(Open& r) {
  r.mutable_attributes()->set_do_rotary(true);
  r.mutable_rope()->set_theta(10000);
  r.mutable_rope()->set_rows(20);
  r.set_explicit_positions(true);
}
void ShortRotary(Open& r) {
  r.mutable_attributes()->set_do_rotary(true);
  *r.mutable_cos_cache() = F32Tensor({20, 4});
  *r.mutable_sin_cache() = F32Tensor({20, 4});
}
void OneRow(Open& r) { r.set_batch(1); }
void Packed(Open& r) { r.set_packed_qkv(true); }
void Half(Open& r) { r.set_dtype(v1::ELEMENT_TYPE_F16); }

std::string Said(AttentionCallKind kind, const AttentionConfig& config,
                 const std::function<void(Call&)>& edit, int64_t max_message = kMaxMessage) {
  Call request = kind == kStep ? CallMessage(7, 1, 10) : CallMessage(7, 5, 10);
  edit(request);
  const auto call = CheckAttentionCall(request, config, kind, max_message);
  if (call.ok()) return "ok";
  EXPECT_EQ(call.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(call.status().message());
}

struct Case {
  const char* says;
  AttentionCallKind kind;
  std::function<void(Open&)> open;
  std::function<void(Call&)> edit;
};

void Nothing(Open&) {}
void Seqlens(Call& r, int32_t a, int32_t b) { *r.mutable_seqlens_k() = I32Tensor({2}, {a, b}); }
void Past(Call& r, int64_t tokens) {
  *r.mutable_past_key() = F32Tensor({2, 2, tokens, 8});
  *r.mutable_past_value() = F32Tensor({2, 2, tokens, 8});
}

TEST(CheckAttentionCall, ShapesAndPresence) {
  const std::vector<Case> cases = {
      {"session_id: expected the id that OpenSession returned, got 0", kStep, Nothing,
       [](Call& r) { r.set_session_id(0); }},
      {"layer: expected 0..2, got 3", kStep, Nothing, [](Call& r) { r.set_layer(3); }},
      {"layer: expected 0..2, got -1", kPrefill, Nothing, [](Call& r) { r.set_layer(-1); }},
      {"query: expected a tensor [2, S, 32], got nothing", kPrefill, Nothing,
       [](Call& r) { r.clear_query(); }},
      {"query.dtype: expected f32, got f16", kStep, Nothing,
       [](Call& r) {
         *r.mutable_query() = ZeroTensor(v1::ELEMENT_TYPE_F16, {2, 1, 32});
       }},
      {"query.dtype: expected f16, got f32", kStep, Half, [](Call&) {}},
      {"query.shape: expected [2, S, 32] with 1 <= S <= 32, got [2, 32]", kPrefill, Nothing,
       [](Call& r) {
         *r.mutable_query() = F32Tensor({2, 32});
       }},
      {"query.shape: expected [2, S, 32] with 1 <= S <= 32, got [3, 5, 32]", kPrefill, Nothing,
       [](Call& r) {
         *r.mutable_query() = F32Tensor({3, 5, 32});
       }},
      {"query.shape: expected [2, S, 32] with 1 <= S <= 32, got [2, 0, 32]", kPrefill, Nothing,
       [](Call& r) {
         *r.mutable_query() = F32Tensor({2, 0, 32});
       }},
      {"query.shape: expected [2, S, 32] with 1 <= S <= 32, got [2, 33, 32]", kPrefill, Nothing,
       [](Call& r) {
         *r.mutable_query() = F32Tensor({2, 33, 32});
       }},
      {"query.shape: expected [2, S, 32] with 1 <= S <= 32, got rank 9", kPrefill, Nothing,
       [](Call& r) {
         *r.mutable_query() = F32Tensor({2, 5, 32, 1, 1, 1, 1, 1, 1});
       }},
      {"query.shape: expected [2, 1, 32], got [2, 2, 32]", kStep, Nothing,
       [](Call& r) {
         *r.mutable_query() = F32Tensor({2, 2, 32});
       }},
      {"query.shape: expected [2, 1, 64], got [2, 1, 32]", kStep, Packed,
       [](Call& r) {
         r.clear_key();
         r.clear_value();
       }},
      {"query.data: expected 256 bytes for f32 of shape [2, 1, 32], got 255", kStep, Nothing,
       [](Call& r) { r.mutable_query()->mutable_data()->pop_back(); }},
      {"query.data: expected 256 bytes for f32 of shape [2, 1, 32], got 260", kStep, Nothing,
       [](Call& r) { r.mutable_query()->mutable_data()->append(4, '\0'); }},
      {"query.shape: expected [2, S, 32] with 1 <= S <= 32, got [2, 4611686018427387904, 32]",
       kPrefill, Nothing, [](Call& r) { r.mutable_query()->set_shape(1, int64_t{1} << 62); }},
      // Key and value.
      {"value: expected both key and value, since the session is not packed_qkv, got key alone",
       kStep, Nothing, [](Call& r) { r.clear_value(); }},
      {"key: expected both key and value, since the session is not packed_qkv, got value alone",
       kStep, Nothing, [](Call& r) { r.clear_key(); }},
      {"key: expected both key and value, since the session is not packed_qkv, got neither", kStep,
       Nothing,
       [](Call& r) {
         r.clear_key();
         r.clear_value();
       }},
      {"key: expected nothing with packed_qkv, got a tensor", kStep, Packed,
       [](Call& r) {
         *r.mutable_query() = F32Tensor({2, 1, 64});
       }},
      {"value: expected nothing with packed_qkv, got a tensor", kStep, Packed,
       [](Call& r) {
         *r.mutable_query() = F32Tensor({2, 1, 64});
         r.clear_key();
       }},
      {"key.dtype: expected f32, got bf16", kStep, Nothing,
       [](Call& r) {
         *r.mutable_key() = ZeroTensor(v1::ELEMENT_TYPE_BF16, {2, 1, 16});
       }},
      {"key.shape: expected [2, 5, 16], or a sequence of 0 to attend only, got [2, 4, 16]",
       kPrefill, Nothing,
       [](Call& r) {
         *r.mutable_key() = F32Tensor({2, 4, 16});
       }},
      {"key.shape: expected [2, 5, 16], or a sequence of 0 to attend only, got [2, 5, 32]",
       kPrefill, Nothing,
       [](Call& r) {
         *r.mutable_key() = F32Tensor({2, 5, 32});
       }},
      {"key.shape: expected [2, 5, 16], or a sequence of 0 to attend only, got [1, 0, 16]",
       kPrefill, Nothing,
       [](Call& r) {
         *r.mutable_key() = F32Tensor({1, 0, 16});
       }},
      {"key.data: expected 640 bytes for f32 of shape [2, 5, 16], got 0", kPrefill, Nothing,
       [](Call& r) { r.mutable_key()->clear_data(); }},
      {"value.shape: expected [2, 5, 16], got [2, 0, 16]", kPrefill, Nothing,
       [](Call& r) {
         *r.mutable_value() = F32Tensor({2, 0, 16});
       }},
      {"value.dtype: expected f32, got i32", kStep, Nothing,
       [](Call& r) {
         *r.mutable_value() = ZeroTensor(v1::ELEMENT_TYPE_I32, {2, 1, 16});
       }},
      // Past and present.
      {"past_value: expected both past_key and past_value, got past_key alone", kPrefill, Nothing,
       [](Call& r) {
         Past(r, 5);
         r.clear_past_value();
       }},
      {"past_key: expected both past_key and past_value, got past_value alone", kPrefill, Nothing,
       [](Call& r) {
         Past(r, 5);
         r.clear_past_key();
       }},
      {"past_key: expected nothing on Step: the session holds the past, got a tensor", kStep,
       Nothing, [](Call& r) { Past(r, 5); }},
      {"want_present: expected false on Step, got true", kStep, Nothing,
       [](Call& r) { r.set_want_present(true); }},
      {"past_key.shape: expected [2, 2, past, 8] with 0 <= past <= 32, got [2, 5, 2, 8]", kPrefill,
       Nothing,
       [](Call& r) {
         Past(r, 5);
         *r.mutable_past_key() = F32Tensor({2, 5, 2, 8});
       }},
      {"past_key.shape: expected [2, 2, past, 8] with 0 <= past <= 32, got [2, 2, 33, 8]", kPrefill,
       Nothing, [](Call& r) { Past(r, 33); }},
      {"past_value.shape: expected [2, 2, 5, 8], got [2, 2, 6, 8]", kPrefill, Nothing,
       [](Call& r) {
         Past(r, 5);
         *r.mutable_past_value() = F32Tensor({2, 2, 6, 8});
       }},
      {"past_key.shape: expected at least 5 past tokens, as seqlens_k[0] says, got 4", kPrefill,
       Nothing, [](Call& r) { Past(r, 4); }},
      // seqlens_k.
      {"seqlens_k: expected an i32 tensor [2] or [2, 1]; a scalar only when batch is 1, got "
       "nothing",
       kStep, Nothing, [](Call& r) { r.clear_seqlens_k(); }},
      {"seqlens_k.dtype: expected i32, got i64", kStep, Nothing,
       [](Call& r) {
         *r.mutable_seqlens_k() = I64Tensor({2}, {9, 9});
       }},
      {"seqlens_k.shape: expected [2] or [2, 1]; a scalar only when batch is 1, got a scalar",
       kStep, Nothing, [](Call& r) { *r.mutable_seqlens_k() = I32Tensor({}, {9}); }},
      {"seqlens_k.shape: expected [2] or [2, 1]; a scalar only when batch is 1, got [1, 2]", kStep,
       Nothing,
       [](Call& r) {
         *r.mutable_seqlens_k() = I32Tensor({1, 2}, {9, 9});
       }},
      {"seqlens_k.shape: expected [2] or [2, 1]; a scalar only when batch is 1, got [2, 1, 1]",
       kStep, Nothing,
       [](Call& r) {
         *r.mutable_seqlens_k() = I32Tensor({2, 1, 1}, {9, 9});
       }},
      {"seqlens_k.shape: expected [2] or [2, 1]; a scalar only when batch is 1, got [3]", kStep,
       Nothing,
       [](Call& r) {
         *r.mutable_seqlens_k() = I32Tensor({3}, {9, 9, 9});
       }},
      {"seqlens_k.data: expected 8 bytes for i32 of shape [2], got 4", kStep, Nothing,
       [](Call& r) { r.mutable_seqlens_k()->mutable_data()->resize(4); }},
      // Positions.
      {"position_ids: expected nothing, since the session has no explicit_positions, got a tensor",
       kStep, Nothing,
       [](Call& r) {
         *r.mutable_position_ids() = I64Tensor({2, 1}, {0, 0});
       }},
      {"position_ids: expected an i64 tensor [2, 1], since the session has explicit_positions, got "
       "nothing",
       kStep, Explicit, [](Call&) {}},
      {"position_ids.dtype: expected i64, got i32", kStep, Explicit,
       [](Call& r) {
         *r.mutable_position_ids() = I32Tensor({2, 1}, {0, 0});
       }},
      {"position_ids.shape: expected [2, 1], got [2]", kStep, Explicit,
       [](Call& r) {
         *r.mutable_position_ids() = I64Tensor({2}, {0, 0});
       }},
      // Bias.
      {"attention_bias.dtype: expected f32, got i32", kStep, Nothing,
       [](Call& r) {
         *r.mutable_attention_bias() = ZeroTensor(v1::ELEMENT_TYPE_I32, {1, 1, 1, 10});
       }},
      {"attention_bias.dtype: expected f32, got f16", kStep, Nothing,
       [](Call& r) {
         *r.mutable_attention_bias() = ZeroTensor(v1::ELEMENT_TYPE_F16, {1, 1, 1, 10});
       }},
      {"attention_bias.shape: expected [1, 1, 1, keys] with 10 <= keys <= 2147483647, got [1, 1, "
       "1, "
       "9]",
       kStep, Nothing,
       [](Call& r) {
         *r.mutable_attention_bias() = F32Tensor({1, 1, 1, 9});
       }},
      {"attention_bias.shape: expected [2, 1, 5, keys] with 10 <= keys <= 2147483647, got [3, 1, "
       "5, "
       "10]",
       kPrefill, Nothing,
       [](Call& r) {
         *r.mutable_attention_bias() = F32Tensor({3, 1, 5, 10});
       }},
      {"attention_bias.shape: expected [2, 4, 5, keys] with 10 <= keys <= 2147483647, got [2, 2, "
       "5, "
       "10]",
       kPrefill, Nothing,
       [](Call& r) {
         *r.mutable_attention_bias() = F32Tensor({2, 2, 5, 10});
       }},
      {"attention_bias.shape: expected [2, 4, 5, keys] with 10 <= keys <= 2147483647, got [5, 10]",
       kPrefill, Nothing,
       [](Call& r) {
         *r.mutable_attention_bias() = F32Tensor({5, 10});
       }},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(Said(c.kind, Config(c.open), c.edit), HasSubstr(c.says));
  }
}

TEST(CheckAttentionCall, PrefillJudgesValues) {
  const std::vector<Case> cases = {
      {"seqlens_k[1]: expected 4..31 (5 new tokens, capacity 32), got -1", kPrefill, Nothing,
       [](Call& r) { Seqlens(r, 9, -1); }},
      {"seqlens_k[0]: expected 4..31 (5 new tokens, capacity 32), got 3", kPrefill, Nothing,
       [](Call& r) { Seqlens(r, 3, 9); }},
      {"seqlens_k[0]: expected 4..31 (5 new tokens, capacity 32), got 32", kPrefill, Nothing,
       [](Call& r) { Seqlens(r, 32, 9); }},
      {"seqlens_k[1]: expected 4..31 (5 new tokens, capacity 32), got 2147483647", kPrefill,
       Nothing, [](Call& r) { Seqlens(r, 9, INT32_MAX); }},
      {"total_sequence_length: expected 10..32 (longest seqlens_k + 1, capacity), got 9", kPrefill,
       Nothing, [](Call& r) { r.set_total_sequence_length(9); }},
      {"total_sequence_length: expected 10..32 (longest seqlens_k + 1, capacity), got -1", kPrefill,
       Nothing, [](Call& r) { r.set_total_sequence_length(-1); }},
      {"total_sequence_length: expected 10..32 (longest seqlens_k + 1, capacity), got 33", kPrefill,
       Nothing, [](Call& r) { r.set_total_sequence_length(33); }},
      {"position_ids[1, 2]: expected 0..19, the rows of the rotary caches, got 20", kPrefill,
       Explicit,
       [](Call& r) {
         *r.mutable_position_ids() = I64Tensor({2, 5}, {0, 1, 2, 3, 4, 0, 1, 20, 3, 4});
       }},
      {"position_ids[0, 0]: expected 0..19, the rows of the rotary caches, got -1", kPrefill,
       Explicit,
       [](Call& r) {
         *r.mutable_position_ids() = I64Tensor({2, 5}, {-1, 1, 2, 3, 4, 0, 1, 2, 3, 4});
       }},
      {"seqlens_k[1]: expected a last position in 0..19, the rows of the rotary caches, got 20",
       kPrefill, ShortRotary, [](Call& r) { Seqlens(r, 19, 20); }},
      {"want_present: expected a response of at most 8192 bytes (use Export), got 1280 + 8192",
       kPrefill, Nothing, [](Call& r) { r.set_want_present(true); }},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(Said(c.kind, Config(c.open), c.edit,
                     c.says[0] == 'w' ? 8192 + kMessageOverheadBytes : kMaxMessage),
                HasSubstr(c.says));
  }
}

TEST(CheckAttentionCall, StepLeavesValuesToTheDevice) {
  for (const int32_t bad : {-1, -2147483647 - 1, 31, 32, 2147483647}) {
    EXPECT_EQ(Said(kStep, Config(), [&](Call& r) { Seqlens(r, bad, 9); }), "ok") << bad;
    EXPECT_EQ(Said(kStep, Config(ShortRotary), [&](Call& r) { Seqlens(r, bad, 9); }), "ok") << bad;
  }
  EXPECT_EQ(Said(kStep, Config(), [](Call& r) { r.set_total_sequence_length(1); }), "ok");
  EXPECT_EQ(Said(kStep, Config(Explicit),
                 [](Call& r) {
                   *r.mutable_position_ids() = I64Tensor({2, 1}, {-1, 20});
                 }),
            "ok");
  // A row that the device refuses asks for no bias; the others still do.
  EXPECT_EQ(Said(kStep, Config(),
                 [](Call& r) {
                   Seqlens(r, INT32_MAX, 9);
                   *r.mutable_attention_bias() = F32Tensor({1, 1, 1, 10});
                 }),
            "ok");
}

TEST(CheckAttentionCall, EveryFormThatIsAllowed) {
  EXPECT_EQ(Said(kStep, Config(), [](Call&) {}), "ok");
  EXPECT_EQ(Said(kPrefill, Config(), [](Call&) {}), "ok");
  EXPECT_EQ(Said(kPrefill, Config(), [](Call& r) { r.set_want_present(true); }), "ok");
  EXPECT_EQ(Said(kPrefill, Config(), [](Call& r) { r.set_total_sequence_length(10); }), "ok");
  EXPECT_EQ(Said(kPrefill, Config(), [](Call& r) { Seqlens(r, 4, 31); }), "ok") << "ragged";
  EXPECT_EQ(Said(kPrefill, Config(ShortRotary), [](Call& r) { Seqlens(r, 4, 19); }), "ok");
  EXPECT_EQ(Said(kPrefill, Config(), [](Call& r) { Past(r, 5); }), "ok");
  EXPECT_EQ(Said(kPrefill, Config(),
                 [](Call& r) {
                   Past(r, 0);
                   Seqlens(r, 4, 4);
                 }),
            "ok");
  EXPECT_EQ(Said(kStep, Config(),
                 [](Call& r) {
                   *r.mutable_seqlens_k() = I32Tensor({2, 1}, {9, 9});
                 }),
            "ok");
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{}, std::vector<int64_t>{1}, std::vector<int64_t>{1, 1}}) {
    EXPECT_EQ(Said(kStep, Config(OneRow),
                   [&](Call& r) {
                     *r.mutable_query() = F32Tensor({1, 1, 32});
                     *r.mutable_key() = F32Tensor({1, 1, 16});
                     *r.mutable_value() = F32Tensor({1, 1, 16});
                     *r.mutable_seqlens_k() = I32Tensor(shape, {9});
                   }),
              "ok");
  }
}

TEST(CheckAttentionCall, TheCallHoldsWhatCameWithoutCopies) {
  Call r = CallMessage(7, 5, 10);
  r.set_layer(2);
  r.set_want_present(true);
  Past(r, 6);
  *r.mutable_position_ids() = I64Tensor({2, 5}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  *r.mutable_attention_bias() = F32Tensor({1, 4, 5, 12}, 0.5f);
  Seqlens(r, 8, 9);
  const auto call = CheckAttentionCall(r, Config(Explicit), kPrefill, kMaxMessage);
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_EQ(call->session, 7u);
  EXPECT_EQ(call->layer, 2);
  EXPECT_EQ(call->q_sequence, 5);
  EXPECT_EQ(call->kv_sequence, 5);
  EXPECT_EQ(call->query.data(), r.query().data().data());
  EXPECT_EQ(call->key.data(), r.key().data().data());
  EXPECT_EQ(call->value.data(), r.value().data().data());
  EXPECT_EQ(call->past_tokens, 6);
  EXPECT_EQ(call->past_key.data(), r.past_key().data().data());
  EXPECT_EQ(call->past_value.data(), r.past_value().data().data());
  EXPECT_THAT(call->seqlens_k, ElementsAre(8, 9));
  EXPECT_THAT(call->position_ids, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
  EXPECT_EQ(call->bias, std::vector<float>(240, 0.5f));
  EXPECT_EQ(call->bias_batch, 1);
  EXPECT_EQ(call->bias_heads, 4);
  EXPECT_EQ(call->bias_keys, 12);
  EXPECT_TRUE(call->want_present);

  *r.mutable_key() = F32Tensor({2, 0, 16});
  *r.mutable_value() = F32Tensor({2, 0, 16});
  const auto attend = CheckAttentionCall(r, Config(Explicit), kPrefill, kMaxMessage);
  EXPECT_FALSE(attend.ok()) << "past of 10 tokens, 6 given";
  r.clear_past_key();
  r.clear_past_value();
  const auto only = CheckAttentionCall(r, Config(Explicit), kPrefill, kMaxMessage);
  ASSERT_TRUE(only.ok()) << only.status();
  EXPECT_EQ(only->kv_sequence, 0);
  EXPECT_TRUE(only->key.empty());

  Call packed = CallMessage(7, 5, 10);
  *packed.mutable_query() = F32Tensor({2, 5, 64});
  packed.clear_key();
  packed.clear_value();
  const auto split = CheckAttentionCall(packed, Config(Packed), kPrefill, kMaxMessage);
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_EQ(split->kv_sequence, 5);
}

// Whatever passes describes exactly the bytes that came: nothing below checks sizes again.
TEST(CheckAttentionCall, WhatPassesHasTheSizesItSays) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  const auto pick = [&](auto... values) {
    const std::array all{values...};
    return all[random() % all.size()];
  };
  const auto spoil = [&](v1::Tensor* tensor) {
    switch (random() % 4) {
      case 0: tensor->set_dtype(static_cast<v1::ElementType>(random() % 7)); break;
      case 1:
        if (tensor->shape_size() > 0) {
          tensor->set_shape(static_cast<int>(random() % static_cast<size_t>(tensor->shape_size())),
                            pick(int64_t{-1}, int64_t{0}, int64_t{1}, int64_t{2}, int64_t{5},
                                 int64_t{16}, int64_t{1} << 31, INT64_MAX));
        }
        break;
      case 2: tensor->add_shape(pick(int64_t{0}, int64_t{1}, int64_t{1} << 62)); break;
      default: tensor->mutable_data()->resize(random() % 4096); break;
    }
  };
  const std::array configs = {Config(),     Config(OneRow),   Config(Packed),
                              Config(Half), Config(Explicit), Config(ShortRotary)};
  size_t passed = 0;
  for (int round = 0; round < 30000; ++round) {
    const AttentionConfig& config = configs[random() % configs.size()];
    const AttentionCallKind kind = pick(kStep, kPrefill);
    const int64_t s = pick(int64_t{1}, int64_t{1}, int64_t{5}), b = config.batch;
    const v1::ElementType dtype =
        config.dtype == DType::kF16 ? v1::ELEMENT_TYPE_F16 : v1::ELEMENT_TYPE_F32;
    const int64_t kv = pick(s, s, int64_t{0});
    Call r;
    r.set_session_id(7);
    r.set_layer(pick(int64_t{0}, int64_t{2}, int64_t{2}));
    *r.mutable_query() = ZeroTensor(dtype, {b, s, config.packed_qkv ? 64 : 32});
    if (!config.packed_qkv) {
      *r.mutable_key() = ZeroTensor(dtype, {b, kv, 16});
      *r.mutable_value() = ZeroTensor(dtype, {b, kv, 16});
    }
    *r.mutable_seqlens_k() =
        I32Tensor({b}, std::vector<int32_t>(static_cast<size_t>(b), pick(4, 9, 19, 31, -1)));
    if (config.explicit_positions) {
      *r.mutable_position_ids() = ZeroTensor(v1::ELEMENT_TYPE_I64, {b, s});
    }
    if (random() % 4 == 0) *r.mutable_attention_bias() = ZeroTensor(dtype, {1, 4, s, 32});
    if (random() % 4 == 0) {
      *r.mutable_past_key() = ZeroTensor(dtype, {b, 2, 9, 8});
      *r.mutable_past_value() = ZeroTensor(dtype, {b, 2, 9, 8});
    }
    if (random() % 2 == 0) {
      std::vector<v1::Tensor*> present = {r.mutable_query(), r.mutable_seqlens_k()};
      if (r.has_key()) present.insert(present.end(), {r.mutable_key(), r.mutable_value()});
      if (r.has_position_ids()) present.push_back(r.mutable_position_ids());
      if (r.has_attention_bias()) present.push_back(r.mutable_attention_bias());
      if (r.has_past_key()) {
        present.insert(present.end(), {r.mutable_past_key(), r.mutable_past_value()});
      }
      spoil(present[random() % present.size()]);
    }
    const auto call = CheckAttentionCall(r, config, kind, kMaxMessage);
    if (!call.ok()) {
      ASSERT_THAT(std::string(call.status().message()), HasSubstr(": expected "));
      continue;
    }
    ++passed;
    const size_t rows = static_cast<size_t>(b * call->q_sequence);
    const size_t element = SizeOf(config.dtype);
    ASSERT_EQ(call->query.size(), rows * (config.packed_qkv ? 64 : 32) * element);
    const size_t keys =
        config.packed_qkv ? 0 : static_cast<size_t>(b * call->kv_sequence) * 16 * element;
    ASSERT_EQ(call->key.size(), keys);
    ASSERT_EQ(call->value.size(), keys);
    ASSERT_EQ(call->seqlens_k.size(), static_cast<size_t>(b));
    ASSERT_EQ(call->position_ids.size(), config.explicit_positions ? rows : 0);
    ASSERT_EQ(call->past_key.size(), static_cast<size_t>(b * 2 * call->past_tokens * 8) * element);
    ASSERT_EQ(call->past_value.size(), call->past_key.size());
    ASSERT_EQ(call->bias.size(), r.has_attention_bias()
                                     ? static_cast<size_t>(call->bias_batch * call->bias_heads *
                                                           call->q_sequence * call->bias_keys)
                                     : 0);
  }
  EXPECT_GT(passed, 1000u);
}

}  // namespace
}  // namespace latchd
