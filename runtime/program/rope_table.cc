#include "runtime/program/rope_table.h"

#include <cmath>
#include <numbers>

namespace latchd {
namespace {

double ScaledFrequency(double frequency, const RopeScaling& scaling) {
  switch (scaling.kind) {
    case RopeScaling::Kind::kNone: return frequency;
    case RopeScaling::Kind::kLinear: return frequency / scaling.factor;
    case RopeScaling::Kind::kLlama3: break;
  }
  const double original = static_cast<double>(scaling.original_context_tokens);
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  const double long_wavelength = original / scaling.low_freq_factor;
  const double short_wavelength = original / scaling.high_freq_factor;
  if (wavelength > long_wavelength) return frequency / scaling.factor;
  if (wavelength < short_wavelength) return frequency;
  const double smooth = (original / wavelength - scaling.low_freq_factor) /
                        (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1.0 - smooth) * frequency / scaling.factor + smooth * frequency;
}

}  // namespace

RopeTable MakeRopeTable(const ModelConfig& config, int64_t rows) {
  const int64_t half = config.rotary_dim / 2;
  RopeTable table;
  table.cos.resize(rows * half);
  table.sin.resize(rows * half);
  for (int64_t i = 0; i < half; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(config.rotary_dim);
    const double frequency =
        ScaledFrequency(std::pow(config.rope_theta, exponent), config.rope_scaling);
    for (int64_t position = 0; position < rows; ++position) {
      const double angle = static_cast<double>(position) * frequency;
      table.cos[position * half + i] = static_cast<float>(std::cos(angle));
      table.sin[position * half + i] = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

}  // namespace latchd
