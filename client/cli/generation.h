#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/command.h"
#include "client/cli/json.h"
#include "latchd/v1/decode.pb.h"

namespace latchd::cli {

// One Generate call as generate and chat show it. Times are the client's: they include transport.
struct Generation {
  std::string text;
  std::vector<v1::NextToken> tokens;
  v1::GenerateResponse::Finish finish;
  double ttft_ms = 0.0;  // from the call to the first token
  double total_ms = 0.0;
  double tokens_per_s = 0.0;    // after the first token
  std::vector<double> step_us;  // device time of each step, as the daemon measured it

  bool violated() const { return finish.has_violation(); }
};

enum class Echo { kNone, kText, kIds };  // what is printed on stdout as it comes

// `partial`, when given, holds what came before an error.
absl::StatusOr<Generation> RunGeneration(Context& context, const v1::GenerateRequest& request,
                                         Echo echo, Generation* partial = nullptr);

// The contract of `generate --json`: text, token_ids, finish_reason, usage, timings, latch, seed,
// session_id.
Json ToJson(const Generation& generation);
// "64 tokens, 812.4 tok/s, TTFT 12.1 ms, step p50 1.20 ms p99 1.31 ms, latch clear, length".
std::string SummaryLine(const Generation& generation);

}  // namespace latchd::cli
