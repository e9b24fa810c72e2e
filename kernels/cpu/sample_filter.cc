#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/cpu/sample_internal.h"

namespace latchd::cpu {

int32_t FilterTokens(const float* logits, int32_t vocab, const SlotSampling& sampling, float max,
                     int32_t* ids) {
  const auto better = [logits](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  // Probability up to a factor; the most probable token has 1.
  const auto weight = [&](int32_t id) {
    return std::exp((static_cast<double>(logits[id]) - max) / sampling.temperature);
  };
  std::iota(ids, ids + vocab, 0);
  int32_t kept = vocab;
  int32_t sorted = 0;  // ids [0, sorted) are in their final, descending order

  double mass = 0.0;
  if (sampling.top_k > 0 && sampling.top_k < vocab) {
    kept = sorted = sampling.top_k;
    std::partial_sort(ids, ids + kept, ids + vocab, better);
    for (int32_t i = 0; i < kept; ++i) mass += weight(ids[i]);
  } else if (sampling.top_p < 1.0f) {
    mass = SumExp(logits, vocab, max, sampling.temperature);
  }
  if (sampling.top_p < 1.0f) {
    const double wanted = mass * sampling.top_p;
    double reached = 0.0;
    int32_t count = 0;
    while (count < kept && (count == 0 || reached < wanted)) {
      if (count == sorted) {  // a nucleus is small as a rule: sort only as much as it needs
        const int32_t next = std::min(kept, std::max(64, 4 * sorted));
        std::partial_sort(ids + sorted, ids + next, ids + kept, better);
        sorted = next;
      }
      reached += weight(ids[count++]);
    }
    kept = count;
  }
  if (sampling.min_p > 0.0f) {
    const auto too_small = [&](int32_t id) { return weight(id) < sampling.min_p; };
    kept = static_cast<int32_t>(std::remove_if(ids, ids + kept, too_small) - ids);
  }
  return kept;
}

}  // namespace latchd::cpu
