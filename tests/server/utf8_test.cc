#include "server/utf8.h"

#include <gtest/gtest.h>

#include <random>

namespace latchd {
namespace {

const std::string kBad = "\xEF\xBF\xBD";

TEST(Utf8, FindsTheFirstBrokenByte) {
  EXPECT_FALSE(FirstInvalidUtf8(""));
  EXPECT_FALSE(FirstInvalidUtf8("plain"));
  EXPECT_FALSE(FirstInvalidUtf8("\xC3\xA4 \xE2\x82\xAC \xF0\x9F\x98\x80 \xF4\x8F\xBF\xBF"));
  EXPECT_EQ(FirstInvalidUtf8("ab\x80"), 2u);
  EXPECT_EQ(FirstInvalidUtf8("a\xC3"), 1u) << "cut off";
  EXPECT_EQ(FirstInvalidUtf8("\xC0\xAF"), 0u) << "overlong";
  EXPECT_EQ(FirstInvalidUtf8("\xE0\x80\x80"), 0u) << "overlong";
  EXPECT_EQ(FirstInvalidUtf8("\xED\xA0\x80"), 0u) << "surrogate";
  EXPECT_EQ(FirstInvalidUtf8("\xF4\x90\x80\x80"), 0u) << "past U+10FFFF";
  EXPECT_EQ(FirstInvalidUtf8("\xF8\x88\x80\x80\x80"), 0u);
}

TEST(Utf8, ReplacesEachBrokenPart) {
  EXPECT_EQ(ToValidUtf8("a\xF0\x9F\x98z"), "a" + kBad + "z") << "one mark for one cut character";
  EXPECT_EQ(ToValidUtf8("\x80\x80"), kBad + kBad);
  EXPECT_EQ(ToValidUtf8("\xED\xA0\x80"), kBad + kBad + kBad) << "Unicode 15, table 3-8";
}

TEST(Utf8, RandomBytesBecomeValidAndValidTextStays) {
  std::mt19937 random(std::random_device{}());
  for (int round = 0; round < 5000; ++round) {
    std::string bytes;
    for (size_t i = random() % 24; i > 0; --i) {
      // Bytes above 0x7F are the interesting ones.
      bytes += static_cast<char>(random() % 4 == 0 ? random() % 128 : 128 + random() % 128);
    }
    const std::string valid = ToValidUtf8(bytes);
    ASSERT_FALSE(FirstInvalidUtf8(valid)) << ::testing::PrintToString(bytes);
    ASSERT_EQ(ToValidUtf8(valid), valid);
    for (size_t limit = 0; limit <= valid.size(); ++limit) {
      const std::string cut = TruncateUtf8(valid, limit);
      ASSERT_LE(cut.size(), limit);
      ASSERT_GT(cut.size() + 4, limit);
      ASSERT_FALSE(FirstInvalidUtf8(cut));
    }
  }
}

}  // namespace
}  // namespace latchd
