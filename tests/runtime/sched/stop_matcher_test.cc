#include "runtime/sched/stop_matcher.h"

#include <gtest/gtest.h>

#include "tests/support/reference_random.h"

namespace latchd {
namespace {

struct Outcome {
  std::string shown;
  std::optional<std::string> matched;
  bool operator==(const Outcome&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Outcome& o) {
  return out << "shown '" << o.shown << "' matched '" << o.matched.value_or("(none)") << "'";
}

Outcome Stream(const std::vector<std::string>& stops, const std::vector<std::string>& pieces) {
  StopMatcher matcher(stops);
  Outcome outcome;
  for (const std::string& piece : pieces) outcome.shown += matcher.Push(piece);
  if (!matcher.matched()) outcome.shown += matcher.Finish();
  outcome.matched = matcher.matched();
  return outcome;
}

// The definition, on the whole text: the first place where some stop string ends; of those that end
// there, the longest.
Outcome Naive(const std::vector<std::string>& stops, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::optional<std::string> best;
    for (const std::string& stop : stops) {
      const bool ends =
          stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0;
      if (ends && (!best || stop.size() > best->size())) best = stop;
    }
    if (best) return {text.substr(0, end - best->size()), best};
  }
  return {text, std::nullopt};
}

TEST(StopMatcher, Table) {
  struct Case {
    std::vector<std::string> stops, pieces;
    Outcome expected;
  };
  const std::vector<Case> cases = {
      {{}, {"any", "thing"}, {"anything", std::nullopt}},
      {{"stop"}, {}, {"", std::nullopt}},
      {{"stop"}, {"never"}, {"never", std::nullopt}},
      {{"stop"}, {"go stop on"}, {"go ", "stop"}},
      {{"stop"}, {"go s", "to", "p on"}, {"go ", "stop"}},
      {{"stop"}, {"stop"}, {"", "stop"}},
      {{"stop"}, {"a sto", "ne"}, {"a stone", std::nullopt}},
      {{"stop"}, {"ends with sto"}, {"ends with sto", std::nullopt}},
      {{"stop"}, {"stop", " more", " text"}, {"", "stop"}},
      {{"aab"}, {"a", "a", "a", "b"}, {"a", "aab"}},
      {{"\n\n"}, {"one\n", "two\n", "\nthree"}, {"one\ntwo", "\n\n"}},
      {{"x", "yz"}, {"ay", "x"}, {"ay", "x"}},
      {{"b", "abc"}, {"xabc"}, {"xa", "b"}},   // "b" is complete first
      {{"ab", "abc"}, {"xabc"}, {"x", "ab"}},  // whichever way the text is cut
      {{"c", "abc"}, {"xabc"}, {"x", "abc"}},  // both end here: the longest
      {{"\xc3\xa9"}, {"caf\xc3", "\xa9"}, {"caf", "\xc3\xa9"}},
  };
  for (const Case& c : cases) EXPECT_EQ(Stream(c.stops, c.pieces), c.expected);
}

TEST(StopMatcher, ShowsTextAsSoonAsItCannotBeginAStop) {
  StopMatcher matcher({"<end>", "\n\nUser:"});
  EXPECT_EQ(matcher.Push("hello "), "hello ");
  EXPECT_EQ(matcher.Push("a<e"), "a");
  EXPECT_EQ(matcher.Push("n<"), "<en");
  EXPECT_EQ(matcher.Push("b"), "<b");
  EXPECT_EQ(matcher.Push("\n"), "");
  EXPECT_EQ(matcher.Push("\n"), "");
  EXPECT_EQ(matcher.Push("\n"), "\n");
  EXPECT_EQ(matcher.Finish(), "\n\n");
  EXPECT_EQ(matcher.Finish(), "");
}

TEST(StopMatcher, ShowsNothingFromTheStopOn) {
  StopMatcher matcher({"stop"});
  EXPECT_EQ(matcher.Push("a stop b"), "a ");
  EXPECT_EQ(matcher.Push("c"), "");
  EXPECT_EQ(matcher.Finish(), "");
}

// Every way to cut the text gives what the definition gives for the whole text. A small alphabet
// makes stop strings that overlap themselves and each other.
TEST(StopMatcher, EveryChunkingAgreesWithASearchOfTheWholeText) {
  reference::Random random;
  SCOPED_TRACE(random.note());
  const auto word = [&](int32_t least, int32_t most) {
    std::string text(static_cast<size_t>(random.Int(least, most)), ' ');
    for (char& c : text) c = static_cast<char>('a' + random.Int(0, 1 + random.Int(0, 1)));
    return text;
  };
  int matches = 0;
  for (int round = 0; round < 400; ++round) {
    std::vector<std::string> stops(static_cast<size_t>(random.Int(0, 3)));
    for (std::string& stop : stops) stop = word(1, 4);
    const std::string text = word(0, 9);
    const Outcome expected = Naive(stops, text);
    matches += expected.matched.has_value();
    const uint32_t cuts = text.empty() ? 1u : 1u << (text.size() - 1);
    for (uint32_t cut = 0; cut < cuts; ++cut) {
      std::vector<std::string> pieces(1);
      for (size_t i = 0; i < text.size(); ++i) {
        pieces.back() += text[i];
        if (i + 1 < text.size() && (cut >> i & 1u)) pieces.emplace_back();
      }
      ASSERT_EQ(Stream(stops, pieces), expected)
          << "text '" << text << "', cut " << cut << ", first stop '"
          << (stops.empty() ? "" : stops[0]) << "' of " << stops.size();
    }
  }
  EXPECT_GT(matches, 50);
  EXPECT_LT(matches, 400);
}

}  // namespace
}  // namespace latchd
