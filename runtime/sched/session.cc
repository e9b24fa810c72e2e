#include "runtime/sched/session.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace latchd {

SlotSampling ToSlotSampling(const SamplingOptions& options, int32_t top_logprobs) {
  return {.temperature = options.temperature,
          .top_p = options.top_p,
          .min_p = options.min_p,
          .repetition_penalty = options.repetition_penalty,
          .presence_penalty = options.presence_penalty,
          .frequency_penalty = options.frequency_penalty,
          .top_k = options.top_k,
          .top_logprobs = top_logprobs,
          .seed = options.seed,
          .bias_count = static_cast<int32_t>(options.logit_bias.size()),
          .reserved = 0};
}

// Uploaded apart from SlotSampling: it is rare and large, and SlotSampling.bias_count says how much
// of the slot's list counts.
std::vector<LogitBias> ToLogitBias(const SamplingOptions& options) {
  std::vector<LogitBias> bias;
  for (const auto& [token, value] : options.logit_bias) bias.push_back({token, value});
  return bias;
}

// Stricter than the arithmetic needs where the arithmetic is silent: an option that can make a
// logit infinite or not a number would give some token without an error.
absl::Status CheckSampling(const SamplingOptions& options, int64_t vocab) {
  // Logits are divided by the temperature: one in (0, 0.001) could overflow f32.
  constexpr float kMinTemperature = 1e-3f, kMaxTemperature = 100.0f;
  // Logits are divided or multiplied by it, by their sign.
  constexpr float kMinRepetitionPenalty = 0.01f, kMaxRepetitionPenalty = 100.0f;
  const auto expect = [](bool holds, const std::string& field, const std::string& expected,
                         double got) {
    if (holds) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("sampling.", field, ": expected ", expected, ", got ", got));
  };
  // NaN is within nothing.
  const auto within = [](float value, float low, float high) {
    return value >= low && value <= high;
  };
  const SamplingOptions& o = options;
  const absl::Status checks[] = {
      expect(o.temperature == 0 || within(o.temperature, kMinTemperature, kMaxTemperature),
             "temperature",
             absl::StrCat("0 or ", kMinTemperature, " <= temperature <= ", kMaxTemperature),
             o.temperature),
      expect(o.top_k >= 0, "top_k", "top_k >= 0", o.top_k),
      expect(within(o.top_p, 0, 1) && o.top_p > 0, "top_p", "0 < top_p <= 1", o.top_p),
      expect(within(o.min_p, 0, 1) && o.min_p < 1, "min_p", "0 <= min_p < 1", o.min_p),
      expect(
          within(o.repetition_penalty, kMinRepetitionPenalty, kMaxRepetitionPenalty),
          "repetition_penalty",
          absl::StrCat(kMinRepetitionPenalty, " <= repetition_penalty <= ", kMaxRepetitionPenalty),
          o.repetition_penalty),
      expect(within(o.presence_penalty, -2, 2), "presence_penalty", "-2 <= presence_penalty <= 2",
             o.presence_penalty),
      expect(within(o.frequency_penalty, -2, 2), "frequency_penalty",
             "-2 <= frequency_penalty <= 2", o.frequency_penalty),
      expect(o.logit_bias.size() <= kMaxLogitBias, "logit_bias",
             absl::StrCat("at most ", kMaxLogitBias, " entries"),
             static_cast<double>(o.logit_bias.size())),
  };
  for (const absl::Status& check : checks) {
    if (!check.ok()) return check;
  }
  for (const auto& [token, bias] : o.logit_bias) {
    const std::string field = absl::StrCat("logit_bias[", token, "]");
    absl::Status status = expect(token >= 0 && token < vocab, field,
                                 absl::StrCat("a token id in 0..", vocab - 1), token);
    if (status.ok()) status = expect(std::isfinite(bias), field, "a finite number", bias);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace latchd
