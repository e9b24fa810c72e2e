#include <cmath>
#include <functional>

#include "runtime/sched/session.h"
#include "tests/support/status_matchers.h"

namespace latchd {
namespace {

using testing::Fails;
using testing::IsOk;

constexpr int64_t kVocab = 100;
constexpr float kNan = NAN, kInf = INFINITY;

struct Case {
  const char* field;
  std::function<void(SamplingOptions&)> set;
};

TEST(CheckSampling, ValuesInsideAreTaken) {
  const std::vector<std::function<void(SamplingOptions&)>> good = {
      [](SamplingOptions&) {},
      [](SamplingOptions& s) { s.temperature = 0.0f; },
      [](SamplingOptions& s) { s.temperature = 100.0f; },
      [](SamplingOptions& s) { s.top_k = 1000000; },
      [](SamplingOptions& s) { s.top_p = 1e-6f; },
      [](SamplingOptions& s) { s.min_p = 0.999f; },
      [](SamplingOptions& s) { s.repetition_penalty = 0.01f; },
      [](SamplingOptions& s) { s.presence_penalty = -2.0f, s.frequency_penalty = 2.0f; },
      [](SamplingOptions& s) {
        s.logit_bias = {{0, -100.0f}, {kVocab - 1, 100.0f}};
      },
      [](SamplingOptions& s) {
        s.logit_bias.assign(kMaxLogitBias, {1, 1.0f});
      },
  };
  for (size_t i = 0; i < good.size(); ++i) {
    SamplingOptions options;
    good[i](options);
    EXPECT_THAT(CheckSampling(options, kVocab), IsOk()) << "case " << i;
  }
}

TEST(CheckSampling, ValuesOutsideAreRefusedByField) {
  const std::vector<Case> bad = {
      {"temperature", [](SamplingOptions& s) { s.temperature = -0.1f; }},
      {"temperature", [](SamplingOptions& s) { s.temperature = 9e-4f; }},
      {"temperature", [](SamplingOptions& s) { s.temperature = 100.1f; }},
      {"temperature", [](SamplingOptions& s) { s.temperature = kNan; }},
      {"temperature", [](SamplingOptions& s) { s.temperature = kInf; }},
      {"top_k", [](SamplingOptions& s) { s.top_k = -1; }},
      {"top_p", [](SamplingOptions& s) { s.top_p = 0.0f; }},
      {"top_p", [](SamplingOptions& s) { s.top_p = 1.001f; }},
      {"top_p", [](SamplingOptions& s) { s.top_p = kNan; }},
      {"min_p", [](SamplingOptions& s) { s.min_p = 1.0f; }},
      {"min_p", [](SamplingOptions& s) { s.min_p = -0.5f; }},
      {"min_p", [](SamplingOptions& s) { s.min_p = kNan; }},
      {"repetition_penalty", [](SamplingOptions& s) { s.repetition_penalty = 0.0f; }},
      {"repetition_penalty", [](SamplingOptions& s) { s.repetition_penalty = kInf; }},
      {"presence_penalty", [](SamplingOptions& s) { s.presence_penalty = 2.1f; }},
      {"presence_penalty", [](SamplingOptions& s) { s.presence_penalty = kNan; }},
      {"frequency_penalty", [](SamplingOptions& s) { s.frequency_penalty = -2.1f; }},
      {"logit_bias",
       [](SamplingOptions& s) {
         s.logit_bias = {{-1, 0.0f}};
       }},
      {"logit_bias",
       [](SamplingOptions& s) {
         s.logit_bias = {{kVocab, 0.0f}};
       }},
      {"logit_bias",
       [](SamplingOptions& s) {
         s.logit_bias = {{5, kNan}};
       }},
      {"logit_bias",
       [](SamplingOptions& s) {
         s.logit_bias = {{5, -kInf}};
       }},
      {"logit_bias",
       [](SamplingOptions& s) {
         s.logit_bias.assign(kMaxLogitBias + 1, {1, 1.0f});
       }},
  };
  for (const Case& c : bad) {
    SamplingOptions options;
    c.set(options);
    const std::string field = std::string("sampling.") + c.field;
    const absl::Status status = CheckSampling(options, kVocab);
    EXPECT_THAT(status, Fails(absl::StatusCode::kInvalidArgument, field));
    EXPECT_THAT(status, Fails(absl::StatusCode::kInvalidArgument, ": expected "));
    EXPECT_THAT(status, Fails(absl::StatusCode::kInvalidArgument, ", got "));
  }
}

TEST(ToSlotSampling, CarriesEveryField) {
  const SamplingOptions options = {.temperature = 0.5f,
                                   .top_k = 3,
                                   .top_p = 0.75f,
                                   .min_p = 0.125f,
                                   .repetition_penalty = 1.5f,
                                   .presence_penalty = 0.25f,
                                   .frequency_penalty = -0.25f,
                                   .seed = uint64_t{1} << 60,
                                   .logit_bias = {{4, 2.0f}, {5, 3.0f}}};
  const SlotSampling s = ToSlotSampling(options, 6);
  EXPECT_EQ(s.temperature, 0.5f);
  EXPECT_EQ(s.top_k, 3);
  EXPECT_EQ(s.top_p, 0.75f);
  EXPECT_EQ(s.min_p, 0.125f);
  EXPECT_EQ(s.repetition_penalty, 1.5f);
  EXPECT_EQ(s.presence_penalty, 0.25f);
  EXPECT_EQ(s.frequency_penalty, -0.25f);
  EXPECT_EQ(s.seed, uint64_t{1} << 60);
  EXPECT_EQ(s.bias_count, 2);
  EXPECT_EQ(s.top_logprobs, 6);
  const std::vector<LogitBias> bias = ToLogitBias(options);
  ASSERT_EQ(bias.size(), 2u);
  EXPECT_EQ(bias[1].token, 5);
  EXPECT_EQ(bias[1].bias, 3.0f);
}

}  // namespace
}  // namespace latchd
