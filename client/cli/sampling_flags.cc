#include "client/cli/sampling_flags.h"

#include <charconv>
#include <cstdlib>

namespace latchd::cli {
namespace {

// False when `text` is not ID=BIAS.
bool ParseBias(const std::string& text, int32_t& id, float& bias) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals + 1 == text.size()) return false;
  const char* const end = text.data() + equals;
  const auto [stop, error] = std::from_chars(text.data(), end, id);
  if (error != std::errc() || stop != end) return false;
  char* bias_end = nullptr;
  bias = std::strtof(text.c_str() + equals + 1, &bias_end);
  return *bias_end == '\0';
}

std::string CheckBias(const std::string& text) {
  int32_t id = 0;
  float bias = 0.0f;
  if (ParseBias(text, id, bias)) return "";
  return "expected TOKEN_ID=BIAS, for example 198=-100, got " + text;
}

}  // namespace

void SamplingFlags::AddTo(CLI::App& app) {
  const std::string group = "Sampling";
  app.add_option("--temperature", temperature, "0 is greedy [daemon: 0]")->group(group);
  app.add_option("--top-k", top_k, "Keep the K likeliest tokens; 0 is off")->group(group);
  app.add_option("--top-p", top_p, "Nucleus, in (0, 1]; 1 is off")->group(group);
  app.add_option("--min-p", min_p, "Of the likeliest's probability, in [0, 1)")->group(group);
  app.add_option("--repetition-penalty", repetition_penalty, "> 0; 1 is off")->group(group);
  app.add_option("--presence-penalty", presence_penalty, "-2..2; 0 is off")->group(group);
  app.add_option("--frequency-penalty", frequency_penalty, "-2..2; 0 is off")->group(group);
  app.add_option("--seed", seed, "Same seed, same tokens; else random and reported")
      ->check(CLI::NonNegativeNumber)
      ->group(group);
  app.add_option("--logit-bias", logit_bias, "TOKEN_ID=BIAS; may be repeated")
      ->check(CheckBias)
      ->allow_extra_args(false)
      ->group(group);
}

v1::Sampling SamplingFlags::ToProto() const {
  v1::Sampling sampling;
  if (temperature) sampling.set_temperature(*temperature);
  if (top_k) sampling.set_top_k(*top_k);
  if (top_p) sampling.set_top_p(*top_p);
  if (min_p) sampling.set_min_p(*min_p);
  if (repetition_penalty) sampling.set_repetition_penalty(*repetition_penalty);
  if (presence_penalty) sampling.set_presence_penalty(*presence_penalty);
  if (frequency_penalty) sampling.set_frequency_penalty(*frequency_penalty);
  if (seed) sampling.set_seed(*seed);
  for (const std::string& entry : logit_bias) {
    int32_t id = 0;
    float bias = 0.0f;
    if (ParseBias(entry, id, bias)) (*sampling.mutable_logit_bias())[id] = bias;
  }
  return sampling;
}

}  // namespace latchd::cli
