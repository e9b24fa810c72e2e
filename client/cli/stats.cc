#include "client/cli/stats.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace latchd::cli {
namespace {

double NearestRank(const std::vector<double>& sorted, double percent) {
  if (sorted.empty()) return 0.0;
  const auto rank = static_cast<size_t>(std::ceil(percent / 100.0 * sorted.size()));
  return sorted[std::clamp<size_t>(rank, 1, sorted.size()) - 1];
}

}  // namespace

double Percentile(std::vector<double> samples, double percent) {
  std::sort(samples.begin(), samples.end());
  return NearestRank(samples, percent);
}

Summary Summarize(std::vector<double> samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  Summary summary;
  summary.mean = std::accumulate(samples.begin(), samples.end(), 0.0) / samples.size();
  summary.p50 = NearestRank(samples, 50);
  summary.p90 = NearestRank(samples, 90);
  summary.p99 = NearestRank(samples, 99);
  summary.max = samples.back();
  return summary;
}

}  // namespace latchd::cli
