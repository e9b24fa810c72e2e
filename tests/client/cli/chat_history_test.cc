#include "client/cli/chat_history.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace latchd::cli {
namespace {

TEST(PlanChatTurn, FirstTurnPrefillsEverything) {
  const ChatDelta delta = PlanChatTurn({1, 2, 3}, {}, 0);
  EXPECT_FALSE(delta.truncate_to.has_value());
  EXPECT_FALSE(delta.append_next_token);
  EXPECT_EQ(delta.tokens, (std::vector<int32_t>{1, 2, 3}));
}

TEST(PlanChatTurn, AppendsThePendingTokenAndPrefillsTheDelta) {
  const ChatDelta delta = PlanChatTurn({1, 2, 3, 9, 4, 5}, {1, 2, 3, 9}, 3);
  EXPECT_FALSE(delta.truncate_to.has_value());
  EXPECT_TRUE(delta.append_next_token);
  EXPECT_EQ(delta.tokens, (std::vector<int32_t>{4, 5}));
}

TEST(PlanChatTurn, DropsAPendingTokenThatTheTemplateDoesNotWant) {
  const ChatDelta delta = PlanChatTurn({1, 2, 3, 8, 4}, {1, 2, 3, 9}, 3);
  EXPECT_FALSE(delta.truncate_to.has_value());
  EXPECT_FALSE(delta.append_next_token);
  EXPECT_EQ(delta.tokens, (std::vector<int32_t>{8, 4}));
}

TEST(PlanChatTurn, CutsBackToTheFirstDifference) {
  const ChatDelta delta = PlanChatTurn({1, 7, 3, 4}, {1, 2, 3, 9}, 3);
  EXPECT_EQ(delta.truncate_to, 1);
  EXPECT_FALSE(delta.append_next_token);
  EXPECT_EQ(delta.tokens, (std::vector<int32_t>{7, 3, 4}));
}

TEST(PlanChatTurn, AlwaysLeavesATokenToPrefill) {
  const ChatDelta delta = PlanChatTurn({1, 2, 3}, {1, 2, 3, 4}, 3);
  EXPECT_EQ(delta.truncate_to, 2);
  EXPECT_EQ(delta.tokens, (std::vector<int32_t>{3}));
}

// Whatever the state, following the plan leaves exactly the wanted tokens in the cache.
TEST(PlanChatTurn, FollowingThePlanGivesTheWantedTokens) {
  std::mt19937 random(std::random_device{}());
  const auto tokens = [&](size_t least) {
    std::vector<int32_t> ids(least + random() % 6);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % 2);
    return ids;
  };
  for (int round = 0; round < 20'000; ++round) {
    const std::vector<int32_t> wanted = tokens(1);
    std::vector<int32_t> known = tokens(0);
    const int64_t length =
        known.empty() ? 0 : static_cast<int64_t>(known.size()) - static_cast<int64_t>(random() % 2);
    const ChatDelta delta = PlanChatTurn(wanted, known, length);
    std::vector<int32_t> cache(known.begin(), known.begin() + length);
    if (delta.truncate_to.has_value()) {
      ASSERT_LE(*delta.truncate_to, length);
      ASSERT_FALSE(delta.append_next_token) << "truncating drops the pending token";
      cache.resize(*delta.truncate_to);
    }
    if (delta.append_next_token) {
      ASSERT_GT(static_cast<int64_t>(known.size()), length);
      cache.push_back(known[length]);
    }
    ASSERT_FALSE(delta.tokens.empty());
    cache.insert(cache.end(), delta.tokens.begin(), delta.tokens.end());
    ASSERT_EQ(cache, wanted);
  }
}

}  // namespace
}  // namespace latchd::cli
