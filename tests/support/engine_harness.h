#pragma once

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/engine.h"
#include "runtime/obs/metrics.h"

namespace latchd {

// An engine with calls that wait, for tests. Calls that must succeed fail the test and throw
// nothing.
class EngineHarness {
 public:
  explicit EngineHarness(EngineOptions options) {
    options.fault_injection = true;
    absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::Create(options, metrics_, nullptr);
    if (engine.ok()) engine_ = *std::move(engine);
    status_ = engine.status();
  }

  const absl::Status& status() const { return status_; }
  Engine& engine() { return *engine_; }

  SessionId Open(SessionOptions options = {}) {
    absl::StatusOr<SessionInfo> info = engine_->OpenSession(options);
    EXPECT_TRUE(info.ok()) << info.status();
    return info.ok() ? info->id : 0;
  }

  absl::StatusOr<PrefillResult> TryPrefill(PrefillRequest request) {
    return Await<PrefillResult>([&](auto done) { engine_->Prefill(std::move(request), done); });
  }
  absl::StatusOr<StepResult> TryStep(StepRequest request) {
    return Await<StepResult>([&](auto done) { engine_->Step(std::move(request), done); });
  }
  PrefillResult Prefill(SessionId session, std::vector<int32_t> tokens, bool logits = false) {
    auto result =
        TryPrefill({.session = session, .tokens = std::move(tokens), .want_logits = logits});
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *result : PrefillResult{};
  }
  StepResult Step(SessionId session, std::optional<int32_t> forced = std::nullopt,
                  bool logits = false) {
    auto result = TryStep({.session = session, .forced_token = forced, .want_logits = logits});
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *result : StepResult{};
  }

  struct Generated {
    std::vector<int32_t> tokens;
    std::string text;
    GenerateSummary summary;
  };
  Generated Generate(GenerateRequest request) {
    Generated out;
    std::promise<void> finished;
    engine_->Generate(
        std::move(request),
        [&](const GeneratedToken& token) {
          out.tokens.push_back(token.sampled.token);
          out.text += token.text;
        },
        [&](const GenerateSummary& summary) {
          out.summary = summary;
          out.text += summary.text;
          finished.set_value();
        });
    finished.get_future().wait();
    return out;
  }

 private:
  template <typename T, typename F>
  absl::StatusOr<T> Await(F&& submit) {
    absl::StatusOr<T> result = absl::InternalError("no answer");
    std::promise<void> finished;
    submit([&](absl::StatusOr<T> answer) {
      result = std::move(answer);
      finished.set_value();
    });
    finished.get_future().wait();
    return result;
  }

  Metrics metrics_;
  absl::Status status_;
  std::unique_ptr<Engine> engine_;
};

// The device under test: LATCHD_TEST_DEVICE (the GPU check sets "cuda"), or the CPU.
inline std::string TestDevice() {
  const char* device = std::getenv("LATCHD_TEST_DEVICE");
  return device == nullptr ? "cpu" : device;
}

// Path of a file of the source tree; LATCHD_TEST_SOURCE_DIR replaces the tree the test was built
// from.
inline std::string SourcePath(const std::string& relative) {
  const char* root = std::getenv("LATCHD_TEST_SOURCE_DIR");
  return std::string(root == nullptr ? LATCHD_SOURCE_DIR : root) + "/" + relative;
}

}  // namespace latchd
