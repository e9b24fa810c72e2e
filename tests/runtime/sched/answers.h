#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/engine.h"

namespace latchd::testing {

// What a Prefill or Step answered. `calls` must end at 1, whatever path the request takes.
template <typename T>
struct Answer {
  RequestId id = 0;
  int calls = 0;
  absl::StatusOr<T> result = absl::UnknownError("no answer yet");

  bool done() const { return calls > 0; }
  const T& operator*() const { return *result; }
  const T* operator->() const { return &*result; }
};

struct GenerateAnswer {
  RequestId id = 0;
  int calls = 0;
  std::vector<GeneratedToken> events;
  GenerateSummary summary;

  bool done() const { return calls > 0; }
  std::vector<int32_t> tokens() const {
    std::vector<int32_t> out;
    for (const GeneratedToken& event : events) out.push_back(event.sampled.token);
    return out;
  }
  std::string text() const {
    std::string out;
    for (const GeneratedToken& event : events) out += event.text;
    return out + summary.text;
  }
};

}  // namespace latchd::testing
