#include "client/cli/format.h"

#include <gtest/gtest.h>

#include <random>

namespace latchd::cli {
namespace {

TEST(EscapeControl, ShowsControlsAndBrokenUtf8) {
  EXPECT_EQ(EscapeControl("a\x1b[31m\n\t\\"), "a\\x1b[31m\\n\\t\\\\");
  EXPECT_EQ(EscapeControl("\xc3\xa9 \xe4\xb8\xad \xf0\x9f\x98\x80"),
            "\xc3\xa9 \xe4\xb8\xad \xf0\x9f\x98\x80");
  EXPECT_EQ(EscapeControl("\xe4\xb8"), "\\xe4\\xb8") << "half a character";
  EXPECT_EQ(EscapeControl("\xc0\xaf"), "\\xc0\\xaf") << "overlong";
  EXPECT_EQ(EscapeControl("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "surrogate";
  EXPECT_EQ(EscapeControl("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80") << "above U+10FFFF";
  EXPECT_EQ(EscapeControl("\xc2\x9b"), "\\xc2\\x9b") << "C1 control";
  EXPECT_EQ(EscapeControl(std::string("\0\x7f", 2)), "\\x00\\x7f");
}

TEST(TerminalText, KeepsLinesButNoEscapes) {
  EXPECT_EQ(TerminalText("a\n\tb\\\x1b]0;x\x07"), "a\n\tb\\\\x1b]0;x\\x07");
}

TEST(EscapeControl, NoRandomBytesReachTheTerminal) {
  std::mt19937 random(std::random_device{}());
  for (int round = 0; round < 200; ++round) {
    std::string bytes(64, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    for (const char c : EscapeControl(bytes)) {
      EXPECT_GE(static_cast<unsigned char>(c), 0x20);
      EXPECT_NE(c, 0x7f);
    }
  }
}

TEST(Format, NumbersForPeople) {
  EXPECT_EQ(FormatCount(0), "0");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(1234567), "1,234,567");
  EXPECT_EQ(FormatCount(-1234), "-1,234");
  EXPECT_EQ(FormatBytes(512), "512 B");
  EXPECT_EQ(FormatBytes(3 << 19), "1.5 MiB");
  EXPECT_EQ(FormatMicros(950), "950 us");
  EXPECT_EQ(FormatMicros(1250), "1.25 ms");
  EXPECT_EQ(FormatMicros(2.5e6), "2.50 s");
  EXPECT_EQ(FormatUnixMillis(0), "-");
}

TEST(TableTest, AlignsNumbersRightAndTextLeft) {
  Table table({"id", "name"});
  table.AddRow({"7", "\xc3\xa9t\xc3\xa9"});
  table.AddRow({"1,234", "x"});
  EXPECT_EQ(table.ToString(), "   id  name\n    7  \xc3\xa9t\xc3\xa9\n1,234  x\n");
}

}  // namespace
}  // namespace latchd::cli
