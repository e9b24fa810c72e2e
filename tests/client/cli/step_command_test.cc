#include "client/cli/step_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/cli/json.h"
#include "client/cli/stats.h"

namespace latchd::cli {
namespace {

template <class Command>
Command Parse(const std::string& line) {
  const auto command = ParseStepCommand(line);
  EXPECT_TRUE(command.ok()) << line << ": " << command.status();
  const Command* parsed = command.ok() ? std::get_if<Command>(&*command) : nullptr;
  EXPECT_NE(parsed, nullptr) << line;
  return parsed == nullptr ? Command{} : *parsed;
}

TEST(ParseStepCommand, EachForm) {
  EXPECT_EQ(Parse<AcceptCommand>("").steps, 1);
  EXPECT_EQ(Parse<AcceptCommand>("run 12").steps, 12);
  EXPECT_EQ(Parse<AlternativeCommand>("3").number, 3);
  EXPECT_EQ(Parse<ForceTokenCommand>("#198").token_id, 198);
  EXPECT_EQ(Parse<ForceTokenCommand>("#-1").token_id, -1) << "the daemon refuses it, not we";
  EXPECT_EQ(Parse<ForceTextCommand>("= the cat ").text, " the cat ");
  EXPECT_EQ(Parse<TruncateCommand>("trunc 0").length_tokens, 0);
  EXPECT_EQ(Parse<PlainCommand>("latch").kind, PlainCommand::Kind::kLatch);
  EXPECT_EQ(Parse<PlainCommand>("q").kind, PlainCommand::Kind::kQuit);
}

TEST(ParseStepCommand, RefusesWithWhatWasExpected) {
  for (const char* line : {"0", "-1", "run", "run 0", "run x", "trunc", "trunc -1", "#", "#x", "=",
                           "nonsense", "1 2", "99999999999999999999", "#4294967296"}) {
    const auto command = ParseStepCommand(line);
    EXPECT_EQ(command.status().code(), absl::StatusCode::kInvalidArgument) << line;
  }
}

TEST(JsonTest, NamesAreTheContract) {
  EXPECT_EQ(FinishReasonName(v1::FINISH_REASON_LENGTH), "length");
  EXPECT_EQ(FinishReasonName(v1::FINISH_REASON_STOP_TOKEN), "stop_token");
  EXPECT_EQ(FinishReasonName(v1::FINISH_REASON_STOP_STRING), "stop_string");
  EXPECT_EQ(FinishReasonName(v1::FINISH_REASON_CAPACITY), "capacity");
  EXPECT_EQ(FinishReasonName(v1::FINISH_REASON_VIOLATION), "violation");
  EXPECT_EQ(FinishReasonName(static_cast<v1::FinishReason>(42)), "42");
  EXPECT_EQ(StateName(v1::Session::STATE_POISONED), "poisoned");
}

TEST(JsonTest, PartialUtf8StaysValid) {
  testing::internal::CaptureStdout();
  PrintJson({{"text", "ok \xe4\xb8"}});
  const std::string line = testing::internal::GetCapturedStdout();
  EXPECT_EQ(Json::parse(line)["text"], "ok \xef\xbf\xbd");
}

TEST(Stats, NearestRank) {
  EXPECT_EQ(Percentile({}, 50), 0.0);
  EXPECT_EQ(Percentile({5.0}, 99), 5.0);
  EXPECT_EQ(Percentile({4, 1, 3, 2}, 50), 2.0);
  EXPECT_EQ(Percentile({4, 1, 3, 2}, 99), 4.0);
  const Summary summary = Summarize({10, 20, 30, 40});
  EXPECT_EQ(summary.mean, 25.0);
  EXPECT_EQ(summary.p50, 20.0);
  EXPECT_EQ(summary.max, 40.0);
}

}  // namespace
}  // namespace latchd::cli
