#include "server/request_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/server/fake_engine.h"

namespace latchd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kVocab = 257;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// The message of a refusal, or "ok".
template <typename T>
std::string Said(const absl::StatusOr<T>& result) {
  if (result.ok()) return "ok";
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(result.status().message());
}
std::string Said(const absl::Status& status) {
  if (status.ok()) return "ok";
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

struct FloatCase {
  const char* field;
  void (v1::Sampling::*set)(float);
  std::vector<float> good, bad;
};

TEST(CheckSampling, EveryFloatAndItsBounds) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  const std::vector<FloatCase> cases = {
      {"temperature",
       &v1::Sampling::set_temperature,
       {0, 1e-3f, 1, 100},
       {-0.1f, tiny, 9e-4f, 100.1f}},
      {"top_p", &v1::Sampling::set_top_p, {tiny, 0.5f, 1}, {0, -1, 1.5f}},
      {"min_p", &v1::Sampling::set_min_p, {0, 0.5f, 0.999f}, {-0.1f, 1}},
      {"repetition_penalty",
       &v1::Sampling::set_repetition_penalty,
       {0.01f, 1, 100},
       {0, -1, 0.009f, 101}},
      {"presence_penalty", &v1::Sampling::set_presence_penalty, {-2, 0, 2}, {-2.1f, 2.1f}},
      {"frequency_penalty", &v1::Sampling::set_frequency_penalty, {-2, 0, 2}, {-2.1f, 2.1f}},
  };
  for (const FloatCase& c : cases) {
    for (const float value : c.good) {
      v1::Sampling sampling;
      (sampling.*c.set)(value);
      EXPECT_EQ(Said(CheckSampling(sampling, kVocab)), "ok") << c.field << " " << value;
    }
    auto bad = c.bad;
    bad.insert(bad.end(), {kNan, kInf, -kInf});
    for (const float value : bad) {
      v1::Sampling sampling;
      (sampling.*c.set)(value);
      EXPECT_THAT(Said(CheckSampling(sampling, kVocab)),
                  ::testing::AllOf(
                      ::testing::StartsWith(std::string("sampling.") + c.field + ": expected "),
                      HasSubstr(", got ")))
          << value;
    }
  }
  v1::Sampling sampling;
  sampling.set_top_p(1.5f);
  EXPECT_EQ(Said(CheckSampling(sampling, kVocab)),
            "sampling.top_p: expected 0 < top_p <= 1, got 1.5");
}

TEST(CheckSampling, DefaultsAndValuesArrive) {
  const auto defaults = CheckSampling(v1::Sampling(), kVocab);
  ASSERT_TRUE(defaults.ok());
  EXPECT_EQ(defaults->temperature, 0.0f);
  EXPECT_EQ(defaults->top_k, 0);
  EXPECT_EQ(defaults->top_p, 1.0f);
  EXPECT_EQ(defaults->min_p, 0.0f);
  EXPECT_EQ(defaults->repetition_penalty, 1.0f);
  EXPECT_NE(defaults->seed, CheckSampling(v1::Sampling(), kVocab)->seed) << "drawn at random";

  v1::Sampling sampling;
  sampling.set_temperature(0.7f);
  sampling.set_top_k(40);
  sampling.set_top_p(0.9f);
  sampling.set_min_p(0.05f);
  sampling.set_repetition_penalty(1.1f);
  sampling.set_presence_penalty(-0.5f);
  sampling.set_frequency_penalty(0.25f);
  sampling.set_seed(0);
  (*sampling.mutable_logit_bias())[5] = -1e9f;
  const auto out = CheckSampling(sampling, kVocab);
  ASSERT_TRUE(out.ok());
  EXPECT_EQ(out->temperature, 0.7f);
  EXPECT_EQ(out->top_k, 40);
  EXPECT_EQ(out->top_p, 0.9f);
  EXPECT_EQ(out->min_p, 0.05f);
  EXPECT_EQ(out->repetition_penalty, 1.1f);
  EXPECT_EQ(out->presence_penalty, -0.5f);
  EXPECT_EQ(out->frequency_penalty, 0.25f);
  EXPECT_EQ(out->seed, 0u) << "a seed of 0 is a seed";
  EXPECT_THAT(out->logit_bias, ElementsAre(std::pair<int32_t, float>(5, -1e9f)));
}

TEST(CheckSampling, TopKAndBias) {
  v1::Sampling sampling;
  sampling.set_top_k(-1);
  EXPECT_EQ(Said(CheckSampling(sampling, kVocab)), "sampling.top_k: expected top_k >= 0, got -1");
  for (const int32_t id : {-1, 257, std::numeric_limits<int32_t>::min()}) {
    v1::Sampling bad;
    (*bad.mutable_logit_bias())[id] = 1;
    EXPECT_THAT(Said(CheckSampling(bad, kVocab)), HasSubstr("a token id in 0..256, got "));
  }
  for (const float bias : {kNan, kInf, -kInf}) {
    v1::Sampling bad;
    (*bad.mutable_logit_bias())[7] = bias;
    EXPECT_THAT(Said(CheckSampling(bad, kVocab)), HasSubstr("sampling.logit_bias[7]"));
  }
  v1::Sampling many;
  for (int i = 0; i < 256; ++i) (*many.mutable_logit_bias())[i] = 1;
  EXPECT_EQ(Said(CheckSampling(many, kVocab)), "ok");
  (*many.mutable_logit_bias())[256] = 1;
  EXPECT_EQ(Said(CheckSampling(many, kVocab)),
            "sampling.logit_bias: expected at most 256 entries, got 257");
}

TEST(CheckOpenSession, EveryField) {
  v1::OpenSessionRequest request;
  request.set_capacity_tokens(7);
  request.set_ttl_ms(1500);
  request.set_owner(std::string(256, 'o'));
  const auto out = CheckOpenSession(request, kVocab);
  ASSERT_TRUE(out.ok());
  EXPECT_EQ(out->capacity_tokens, 7);
  EXPECT_EQ(out->ttl, absl::Milliseconds(1500));
  EXPECT_EQ(out->owner.size(), 256u);

  request.set_ttl_ms(std::numeric_limits<int64_t>::max());
  request.set_capacity_tokens(std::numeric_limits<int64_t>::max());
  EXPECT_EQ(Said(CheckOpenSession(request, kVocab)), "ok") << "too large is the engine's to refuse";
  request.set_capacity_tokens(-1);
  EXPECT_THAT(Said(CheckOpenSession(request, kVocab)), HasSubstr("capacity_tokens: expected"));
  request.set_capacity_tokens(0);
  request.set_ttl_ms(-5);
  EXPECT_EQ(Said(CheckOpenSession(request, kVocab)), "ttl_ms: expected ttl_ms >= 0, got -5");
  request.set_ttl_ms(0);
  request.set_owner(std::string(257, 'o'));
  EXPECT_EQ(Said(CheckOpenSession(request, kVocab)), "owner: expected at most 256 bytes, got 257");
  request.set_owner("a\xFF");
  EXPECT_EQ(Said(CheckOpenSession(request, kVocab)),
            "owner: expected UTF-8, got an invalid byte at offset 1");
  request.set_owner("");
  request.mutable_sampling()->set_min_p(1);
  EXPECT_THAT(Said(CheckOpenSession(request, kVocab)), HasSubstr("sampling.min_p"));
}

TEST(CheckStep, EveryField) {
  v1::StepRequest request;
  EXPECT_THAT(Said(CheckStep(request, kVocab)), HasSubstr("session_id"));
  request.set_session_id(1);
  for (const int32_t id : {0, 256}) {
    request.set_forced_token_id(id);
    EXPECT_EQ(CheckStep(request, kVocab)->forced_token, id);
  }
  for (const int32_t id : {-1, 257, std::numeric_limits<int32_t>::max()}) {
    request.set_forced_token_id(id);
    EXPECT_THAT(Said(CheckStep(request, kVocab)), HasSubstr("forced_token_id"));
  }
  request.clear_forced_token_id();
  EXPECT_FALSE(CheckStep(request, kVocab)->forced_token);
  for (const int32_t count : {0, 20}) {
    request.set_top_logprobs(count);
    EXPECT_EQ(CheckStep(request, kVocab)->top_logprobs, count);
  }
  for (const int32_t count : {-1, 21}) {
    request.set_top_logprobs(count);
    EXPECT_THAT(Said(CheckStep(request, kVocab)), HasSubstr("top_logprobs: expected 0..20, got"));
  }
}

TEST(CheckTruncate, EveryField) {
  v1::TruncateRequest request;
  EXPECT_THAT(Said(CheckTruncate(request)), HasSubstr("session_id"));
  request.set_session_id(3);
  EXPECT_EQ(Said(CheckTruncate(request)), "ok");
  request.set_length_tokens(-1);
  EXPECT_EQ(Said(CheckTruncate(request)), "length_tokens: expected length_tokens >= 0, got -1");
}

class CheckPrompt : public ::testing::Test {
 protected:
  FakeTokenizer tokenizer_;
  ModelLimits model_{kVocab, &tokenizer_};
};

TEST_F(CheckPrompt, PrefillTextAndTokens) {
  v1::PrefillRequest request;
  EXPECT_THAT(Said(CheckPrefill(request, model_, true)), HasSubstr("session_id"));
  request.set_session_id(9);
  EXPECT_EQ(Said(CheckPrefill(request, model_, true)),
            "prompt: expected at least one token, or append_next_token, got none");
  request.set_append_next_token(true);
  EXPECT_TRUE(CheckPrefill(request, model_, true)->append_next_token);
  request.set_append_next_token(false);
  request.set_text("ab");
  EXPECT_THAT(CheckPrefill(request, model_, true)->tokens, ElementsAre(256, 'a', 'b'));
  EXPECT_THAT(CheckPrefill(request, model_, false)->tokens, ElementsAre('a', 'b'));
  request.set_add_special_tokens(true);
  EXPECT_THAT(CheckPrefill(request, model_, false)->tokens, ElementsAre(256, 'a', 'b'));
  request.set_text("a\xC3");
  EXPECT_EQ(Said(CheckPrefill(request, model_, true)),
            "text: expected UTF-8, got an invalid byte at offset 1");
  request.set_text("a");
  EXPECT_THAT(Said(CheckPrefill(request, {kVocab, nullptr}, true)), HasSubstr("no tokenizer"));

  request.mutable_tokens()->add_ids(0);
  request.mutable_tokens()->add_ids(256);
  EXPECT_THAT(Said(CheckPrefill(request, model_, true)), HasSubstr("add_special_tokens"));
  request.clear_add_special_tokens();
  EXPECT_THAT(CheckPrefill(request, {kVocab, nullptr}, true)->tokens, ElementsAre(0, 256));
  request.mutable_tokens()->add_ids(257);
  EXPECT_EQ(Said(CheckPrefill(request, model_, true)),
            "tokens.ids[2]: expected a token id in 0..256, got 257");
  request.mutable_tokens()->set_ids(2, -1);
  EXPECT_THAT(Said(CheckPrefill(request, model_, true)), HasSubstr("tokens.ids[2]"));
  request.mutable_tokens()->clear_ids();
  EXPECT_THAT(Said(CheckPrefill(request, model_, true)), HasSubstr("prompt"));
  request.set_text("a");
  request.set_top_logprobs(21);
  EXPECT_THAT(Said(CheckPrefill(request, model_, true)), HasSubstr("top_logprobs"));
}

TEST_F(CheckPrompt, GenerateEveryField) {
  v1::GenerateRequest request;
  EXPECT_THAT(Said(CheckGenerate(request, model_, true)), HasSubstr("prompt: expected at least"));
  request.set_session_id(4);
  EXPECT_EQ(Said(CheckGenerate(request, model_, true)), "ok") << "goes on from the next token";
  EXPECT_EQ(CheckGenerate(request, model_, true)->max_tokens, kDefaultMaxTokens);
  EXPECT_FALSE(CheckGenerate(request, model_, true)->sampling);
  request.set_max_tokens(std::numeric_limits<int32_t>::max());
  EXPECT_EQ(CheckGenerate(request, model_, true)->max_tokens, 2147483647);
  request.set_max_tokens(-1);
  EXPECT_EQ(Said(CheckGenerate(request, model_, true)),
            "max_tokens: expected max_tokens >= 0, got -1");
  request.set_max_tokens(1);

  request.add_stop("");
  EXPECT_EQ(Said(CheckGenerate(request, model_, true)), "stop[0]: expected 1..256 bytes, got 0");
  request.set_stop(0, std::string(256, 's'));
  EXPECT_EQ(Said(CheckGenerate(request, model_, true)), "ok");
  EXPECT_THAT(Said(CheckGenerate(request, {kVocab, nullptr}, true)), HasSubstr("stop: expected"));
  request.set_stop(0, std::string(257, 's'));
  EXPECT_THAT(Said(CheckGenerate(request, model_, true)), HasSubstr("stop[0]"));
  request.set_stop(0, "\x80");
  EXPECT_THAT(Said(CheckGenerate(request, model_, true)), HasSubstr("stop[0]: expected UTF-8"));
  request.clear_stop();
  for (int i = 0; i < 16; ++i) request.add_stop("s");
  EXPECT_EQ(Said(CheckGenerate(request, model_, true)), "ok");
  request.add_stop("s");
  EXPECT_EQ(Said(CheckGenerate(request, model_, true)),
            "stop: expected at most 16 strings, got 17");
  request.clear_stop();

  for (int i = 0; i < 256; ++i) request.add_stop_token_ids(i);
  EXPECT_EQ(CheckGenerate(request, model_, true)->stop_tokens.size(), 256u);
  request.add_stop_token_ids(1);
  EXPECT_THAT(Said(CheckGenerate(request, model_, true)), HasSubstr("at most 256 ids, got 257"));
  request.clear_stop_token_ids();
  request.add_stop_token_ids(257);
  EXPECT_THAT(Said(CheckGenerate(request, model_, true)), HasSubstr("stop_token_ids[0]"));
  request.clear_stop_token_ids();

  request.mutable_sampling()->set_top_p(0);
  EXPECT_THAT(Said(CheckGenerate(request, model_, true)), HasSubstr("sampling.top_p"));
  request.mutable_sampling()->clear_top_p();
  EXPECT_TRUE(CheckGenerate(request, model_, true)->sampling);
  request.set_top_logprobs(-1);
  EXPECT_THAT(Said(CheckGenerate(request, model_, true)), HasSubstr("top_logprobs"));
  request.set_top_logprobs(0);
  request.set_session_id(0);
  request.set_append_next_token(true);
  EXPECT_THAT(Said(CheckGenerate(request, model_, true)), HasSubstr("append_next_token"));
}

TEST(CheckChat, EveryField) {
  v1::ApplyChatTemplateRequest request;
  EXPECT_EQ(Said(CheckChat(request)), "messages: expected 1..1024 messages, got 0");
  for (const char* role : {"system", "user", "assistant"}) request.add_messages()->set_role(role);
  EXPECT_EQ(CheckChat(request)->size(), 3u);
  request.mutable_messages(1)->set_role("secret role");
  EXPECT_EQ(Said(CheckChat(request)),
            "messages[1].role: expected system, user or assistant, got another role")
      << "never echoes what a client wrote";
  request.mutable_messages(1)->set_role("user");
  request.mutable_messages(2)->set_content("\xFF");
  EXPECT_THAT(Said(CheckChat(request)), HasSubstr("messages[2].content: expected UTF-8"));
}

TEST(CheckInjectFault, KeepsWhatIsSetAndNeedsASessionWhereOneIsMeant) {
  v1::InjectFaultRequest request;
  request.set_restore_weights(true);
  EXPECT_TRUE(CheckInjectFault(request)->restore_weights);
  request.set_norm_weight(kNan);
  EXPECT_TRUE(std::isnan(*CheckInjectFault(request)->norm_weight));
  request.set_page(-1);
  EXPECT_THAT(Said(CheckInjectFault(request)), HasSubstr("session_id"));
  request.set_session_id(2);
  request.set_seqlens_k(std::numeric_limits<int32_t>::max());
  const auto out = CheckInjectFault(request);
  EXPECT_EQ(out->page, -1);
  EXPECT_EQ(out->seqlens_k, std::numeric_limits<int32_t>::max());
  EXPECT_FALSE(out->position);
  EXPECT_FALSE(out->token);
}

}  // namespace
}  // namespace latchd
