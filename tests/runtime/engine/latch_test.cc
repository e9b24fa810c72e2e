// Every invariant through the engine: reported by name, KV unchanged, refused until cleared,
// recovery exact.

#include <limits>
#include <optional>

#include "gtest/gtest.h"
#include "tests/support/engine_harness.h"

namespace latchd {
namespace {

struct Case {
  const char* name;
  FaultRequest fault;
  uint32_t mask;  // bits that must be set
};

const Case kCases[] = {
    {"TOTAL_OVERFLOW", {.seqlens_k = std::numeric_limits<int32_t>::max()}, kTotalOverflow},
    {"PAST_NEGATIVE", {.seqlens_k = -1}, kPastNegative | kQueryNegative},
    {"QUERY_NEGATIVE", {.seqlens_k = -5}, kQueryNegative},
    {"PAST_CAPACITY", {.seqlens_k = 129}, kPastCapacity},
    {"PRESENT_CAPACITY", {.seqlens_k = 128}, kPresentCapacity},
    {"POSITION", {.position = 512}, kPosition},
    {"POSITION_NEGATIVE", {.position = -1}, kPosition},
    {"TOKEN_RANGE", {.token = 1536}, kTokenRange},
    {"TOKEN_NEGATIVE", {.token = -2}, kTokenRange},
    {"NON_FINITE", {.norm_weight = std::numeric_limits<float>::quiet_NaN()}, kNonFinite},
    {"PAGE_TABLE", {.page = 1 << 20}, kPageTable},
};

class LatchInvariant : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    harness_ = std::make_unique<EngineHarness>(
        EngineOptions{.model_path = SourcePath("models/tiny"), .device = TestDevice()});
    ASSERT_TRUE(harness_->status().ok()) << harness_->status();
  }
  // A session that is 5 tokens and 3 steps old.
  SessionId Started() {
    const SessionId session = harness_->Open({.capacity_tokens = 128});
    harness_->Prefill(session, {14, 260, 1072, 638, 377});
    for (int i = 0; i < 3; ++i) harness_->Step(session);
    return session;
  }
  std::unique_ptr<EngineHarness> harness_;
};

TEST_P(LatchInvariant, IsReportedWritesNothingAndRecoversExactly) {
  Engine& engine = harness_->engine();
  const SessionId good = Started(), bad = Started();
  const std::string before = *engine.KvDigest(bad);
  const int32_t next = *engine.GetSession(bad)->next_token;

  FaultRequest fault = GetParam().fault;
  fault.session = bad;
  ASSERT_TRUE(engine.InjectFault(fault).ok());
  const StepResult violated = harness_->Step(bad);
  ASSERT_TRUE(violated.violation);
  EXPECT_EQ(violated.violation->latch.mask & GetParam().mask, GetParam().mask);
  const std::string name = GetParam().name;
  for (const InvariantInfo& invariant : kInvariants) {
    if (!(invariant.bit & GetParam().mask)) continue;
    EXPECT_NE(violated.violation->text.find(invariant.name), std::string::npos)
        << violated.violation->text;
  }
  EXPECT_EQ(violated.violation->latch.row, 0);
  EXPECT_EQ(violated.violation->latch.step, 4) << "prefill counts one step, then three";
  EXPECT_EQ(violated.length_tokens, 8);
  EXPECT_EQ(*engine.KvDigest(bad), before);
  EXPECT_EQ(engine.GetSession(bad)->state, SessionState::kPoisoned);
  EXPECT_EQ(engine.GetSession(bad)->next_token, next);

  // A good step on the poisoned session is refused with the same violation.
  ASSERT_TRUE(engine.InjectFault({.session = bad, .restore_weights = true}).ok());
  const StepResult refused = harness_->Step(bad);
  ASSERT_TRUE(refused.violation);
  EXPECT_EQ(refused.violation->text, violated.violation->text);
  EXPECT_EQ(*engine.KvDigest(bad), before);

  ASSERT_TRUE(engine.ClearLatch(bad).ok());
  for (int i = 0; i < 10; ++i) {
    const StepResult a = harness_->Step(good, std::nullopt, /*logits=*/true);
    const StepResult b = harness_->Step(bad, std::nullopt, /*logits=*/true);
    ASSERT_FALSE(b.violation) << b.violation->text;
    ASSERT_EQ(a.next.logits, b.next.logits) << "step " << i;
    ASSERT_EQ(a.length_tokens, b.length_tokens);
  }
  EXPECT_EQ(*engine.KvDigest(good), *engine.KvDigest(bad));
}

INSTANTIATE_TEST_SUITE_P(Each, LatchInvariant, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Latch, TruncateAndResetClearIt) {
  EngineHarness harness({.model_path = SourcePath("models/tiny"), .device = TestDevice()});
  ASSERT_TRUE(harness.status().ok()) << harness.status();
  const SessionId session = harness.Open();
  for (const int64_t length : {2, 0}) {
    harness.Prefill(session, {1, 2, 3, 4});
    ASSERT_TRUE(harness.engine().InjectFault({.session = session, .token = 99999}).ok());
    ASSERT_TRUE(harness.Step(session).violation);
    absl::StatusOr<SessionInfo> info = harness.engine().Truncate(session, length);
    ASSERT_TRUE(info.ok()) << info.status();
    EXPECT_EQ(info->latch.mask, 0u);
    EXPECT_EQ(info->length_tokens, length);
    EXPECT_FALSE(info->next_token);
    EXPECT_FALSE(harness.Step(session, 5).violation);
  }
}

TEST(Latch, ServerSideMistakesPoisonNothing) {
  EngineHarness harness(
      {.model_path = SourcePath("models/tiny"), .device = TestDevice(), .max_sessions = 2});
  ASSERT_TRUE(harness.status().ok()) << harness.status();
  const SessionId session = harness.Open({.capacity_tokens = 4});
  const auto code = [](const auto& result) { return result.status().code(); };
  EXPECT_EQ(code(harness.TryStep({.session = session})), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(code(harness.TryStep({.session = session, .forced_token = 1536})),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(harness.TryPrefill({.session = session, .tokens = {1, -1}})),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(harness.TryPrefill({.session = session, .tokens = {1, 2, 3, 4, 5}})),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(harness.TryStep({.session = session + 1000})), absl::StatusCode::kNotFound);
  EXPECT_EQ(harness.Prefill(session, {1, 2, 3, 4}).length_tokens, 4);
  EXPECT_EQ(code(harness.TryStep({.session = session})), absl::StatusCode::kFailedPrecondition)
      << "full";
  EXPECT_EQ(harness.engine().GetSession(session)->latch.mask, 0u);
  harness.Open();
  EXPECT_EQ(harness.engine().OpenSession({}).status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace latchd
