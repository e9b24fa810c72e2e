#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "latchd/v1/decode.pb.h"

namespace latchd::cli {

// The sampling flags of generate, chat and step. Flags not given stay unset in the request, so the
// daemon's defaults (greedy) hold; their ranges are the daemon's to judge.
struct SamplingFlags {
  std::optional<float> temperature, top_p, min_p;
  std::optional<float> repetition_penalty, presence_penalty, frequency_penalty;
  std::optional<int32_t> top_k;
  std::optional<uint64_t> seed;
  std::vector<std::string> logit_bias;  // "ID=BIAS"

  void AddTo(CLI::App& app);
  v1::Sampling ToProto() const;  // REQUIRES: the flags were parsed, which checks logit_bias
};

}  // namespace latchd::cli
