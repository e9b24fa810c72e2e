#pragma once

#include <vector>

namespace latchd::cli {

struct Summary {
  double mean = 0.0, p50 = 0.0, p90 = 0.0, p99 = 0.0, max = 0.0;
};

// Nearest-rank percentile, `percent` in (0, 100]; 0 for no samples.
double Percentile(std::vector<double> samples, double percent);
Summary Summarize(std::vector<double> samples);

}  // namespace latchd::cli
