#include "server/logging.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace latchd {
namespace {

TEST(Logging, TextIsOneLineWithQuotedValues) {
  EXPECT_EQ(FormatTextRecord("rpc done", {{"code", "OK"}, {"seconds", 0.5}}),
            "rpc done code=OK seconds=0.5");
  const std::string line =
      FormatTextRecord("bad\nname", {{"path", "a b\n\"c\""}, {"empty", ""}, {"eq", "x=y"}});
  EXPECT_EQ(line, "bad\\nname empty=\"\" eq=\"x=y\" path=\"a b\\n\\\"c\\\"\"");
}

TEST(Logging, JsonIsOneParsableLineWhateverTheBytes) {
  const std::string line = FormatJsonRecord("2030-01-01T00:00:00Z", "info", "a\n{}\"\xFF\x01",
                                            {{"n", 3}, {"text", "\xC3"}});
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto parsed = nlohmann::json::parse(line);
  EXPECT_EQ(parsed["level"], "info");
  EXPECT_EQ(parsed["n"], 3);
  EXPECT_EQ(parsed["message"], "a\n{}\"\xEF\xBF\xBD\x01");
  EXPECT_THAT(line, ::testing::StartsWith("{\"time\":\"2030-01-01T00:00:00Z\",\"level\":\"info\""));
}

TEST(Logging, ParsesTheNamesOfTheTable) {
  EXPECT_EQ(ParseLogLevel("debug"), LogLevel::kDebug);
  EXPECT_EQ(ParseLogLevel("info"), LogLevel::kInfo);
  EXPECT_EQ(ParseLogLevel("warning"), LogLevel::kWarning);
  EXPECT_EQ(ParseLogLevel("error"), LogLevel::kError);
  EXPECT_EQ(ParseLogLevel("off"), LogLevel::kOff);
  EXPECT_EQ(ParseLogFormat("json"), LogFormat::kJson);
  EXPECT_EQ(ParseLogFormat("text"), LogFormat::kText);
}

}  // namespace
}  // namespace latchd
