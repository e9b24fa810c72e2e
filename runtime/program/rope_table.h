#pragma once

#include <cstdint>
#include <vector>

#include "runtime/model/model_config.h"

namespace latchd {

// Rotary tables, row-major [rows, rotary_dim / 2], f32. Angles are computed in double precision.
struct RopeTable {
  std::vector<float> cos;
  std::vector<float> sin;
};

// Frequencies theta^(-2i/d) (Su et al. 2021), with the model's scaling: linear divides positions by
// the factor; llama3 interpolates by wavelength (Llama 3.1 release, `rope_type: llama3`).
RopeTable MakeRopeTable(const ModelConfig& config, int64_t rows);

}  // namespace latchd
