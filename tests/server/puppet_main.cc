#include "absl/time/clock.h"

#include "server/daemon.h"
#include "tests/server/fake_engine.h"

// latchd over a puppet engine. The model path says how it behaves: "good", "missing" (cannot be
// loaded), "fault" (a sticky device fault soon after the start), "slow" (takes seconds to load),
// "held" (answers nothing).
int main(int argc, char** argv) {
  return latchd::RunDaemon(
      argc, argv,
      [](const latchd::EngineOptions& options, latchd::Metrics&,
         const latchd::Progress& progress) -> absl::StatusOr<std::unique_ptr<latchd::Engine>> {
        if (options.model_path == "missing") {
          return absl::NotFoundError("missing: no such\nmodel");
        }
        if (options.model_path == "slow") absl::SleepFor(absl::Seconds(20));
        auto strings = std::make_shared<latchd::FakeEngine::Strings>();
        strings->hold = options.model_path == "held";
        if (options.model_path == "fault") strings->fault = absl::InternalError("device is gone");
        progress("load weights", 1, 1);
        return std::make_unique<latchd::FakeEngine>(strings);
      });
}
