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

std::vector<LogitBias> ToLogitBias(const SamplingOptions& options) {
  std::vector<LogitBias> bias;
  for (const auto& [token, value] : options.logit_bias) bias.push_back({token, value});
  return bias;
}

absl::Status CheckSampling(const SamplingOptions& options, int64_t vocab) {
  const auto expect = [](bool holds, const char* field, const char* expected, double got) {
    if (holds) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("sampling.", field, ": expected ", expected, ", got ", got));
  };
  const auto within = [](float value, float low, float high) {
    return std::isfinite(value) && value >= low && value <= high;
  };
  const absl::Status checks[] = {
      expect(std::isfinite(options.temperature) && options.temperature >= 0, "temperature",
             "a finite number >= 0", options.temperature),
      expect(options.top_k >= 0, "top_k", "0 (off) or more", options.top_k),
      expect(within(options.top_p, 0, 1) && options.top_p > 0, "top_p", "0 < top_p <= 1",
             options.top_p),
      expect(within(options.min_p, 0, 1) && options.min_p < 1, "min_p", "0 <= min_p < 1",
             options.min_p),
      expect(std::isfinite(options.repetition_penalty) && options.repetition_penalty > 0,
             "repetition_penalty", "a finite number > 0", options.repetition_penalty),
      expect(within(options.presence_penalty, -2, 2), "presence_penalty", "-2..2",
             options.presence_penalty),
      expect(within(options.frequency_penalty, -2, 2), "frequency_penalty", "-2..2",
             options.frequency_penalty),
      expect(options.logit_bias.size() <= kMaxLogitBias, "logit_bias", "at most 256 entries",
             static_cast<double>(options.logit_bias.size())),
  };
  for (const absl::Status& check : checks) {
    if (!check.ok()) return check;
  }
  for (const auto& [token, bias] : options.logit_bias) {
    absl::Status status =
        expect(token >= 0 && token < vocab, "logit_bias", "token ids of the vocabulary", token);
    if (status.ok()) status = expect(std::isfinite(bias), "logit_bias", "finite values", bias);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace latchd
