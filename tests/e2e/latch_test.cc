#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "tests/e2e/daemon.h"

namespace latchd::e2e {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

constexpr int64_t kCapacity = 48;

struct Fault {
  std::string name;
  uint32_t bit;
  std::function<void(v1::InjectFaultRequest&)> set;
};

void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

std::vector<Fault> Faults() {
  using R = v1::InjectFaultRequest;
  return {
      {"TOTAL_OVERFLOW", 1, [](R& r) { r.set_seqlens_k(std::numeric_limits<int32_t>::max()); }},
      {"PAST_NEGATIVE", 2, [](R& r) { r.set_seqlens_k(-1); }},
      {"QUERY_NEGATIVE", 4, [](R& r) { r.set_seqlens_k(-1); }},
      {"PAST_CAPACITY", 8, [](R& r) { r.set_seqlens_k(kContextTokens + 1); }},
      {"PRESENT_CAPACITY", 16, [](R& r) { r.set_seqlens_k(kContextTokens); }},
      {"POSITION", 32, [](R& r) { r.set_position(-3); }},
      {"TOKEN_RANGE", 64, [](R& r) { r.set_token_id(kVocab); }},
      {"NON_FINITE", 128, [](R& r) { r.set_norm_weight(std::nanf("")); }},
      {"PAGE_TABLE", 256, [](R& r) { r.set_page(1 << 29); }},
  };
}

class LatchE2e : public DaemonTest, public ::testing::WithParamInterface<Fault> {
 protected:
  std::string Digest(uint64_t session_id) {
    const auto digest = client().GetKvDigest(session_id);
    EXPECT_TRUE(digest.ok()) << digest.status();
    return digest.ok() ? digest->sha256() : "";
  }

  void Inject(uint64_t session_id, const Fault& fault) {
    v1::InjectFaultRequest request;
    request.set_session_id(session_id);
    fault.set(request);
    const absl::Status status = client().InjectFault(request);
    ASSERT_TRUE(status.ok()) << status;
  }

  void RestoreWeights(uint64_t session_id) {
    v1::InjectFaultRequest request;
    request.set_session_id(session_id);
    request.set_restore_weights(true);
    const absl::Status status = client().InjectFault(request);
    ASSERT_TRUE(status.ok()) << status;
  }
};

TEST_P(LatchE2e, IsReportedByNameAndRecoveredFromExactly) {
  const Fault& fault = GetParam();
  const std::vector<int32_t> prompt = RandomPrompt(7);
  // The longest capacity, so that each fault hits the limit it is named after.
  const client::Session reference = OpenWithPrompt(prompt, kContextTokens);
  const std::vector<int32_t> expected = StepTokens(reference.id(), 12);
  ASSERT_EQ(expected.size(), 12u);

  const client::Session other = OpenWithPrompt(prompt, kContextTokens);
  const client::Session session = OpenWithPrompt(prompt, kContextTokens);
  StepTokens(session.id(), 3);
  const std::string digest = Digest(session.id());
  Inject(session.id(), fault);

  const auto stream = client().OpenStepStream(session.id());
  const absl::Status first = stream->Step().status();
  const auto violation = client::GetViolation(first);
  ASSERT_TRUE(violation.has_value()) << first;
  EXPECT_NE(violation->mask() & fault.bit, 0u) << violation->mask();
  EXPECT_THAT(client::InvariantNames(*violation), Contains(fault.name));
  EXPECT_THAT(std::string(first.message()), HasSubstr(fault.name));

  // Poisoned: the KV cache as before, each further step refused with the same violation, first
  // wins.
  auto state = session.Get();
  ASSERT_TRUE(state.ok());
  EXPECT_EQ(state->state(), v1::Session::STATE_POISONED);
  EXPECT_EQ(state->length_tokens(), 10);
  EXPECT_EQ(state->violation().mask(), violation->mask());
  EXPECT_EQ(Digest(session.id()), digest);
  const auto again = client::GetViolation(stream->Step().status());
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->SerializeAsString(), violation->SerializeAsString());

  // A unary call carries it in the status details.
  v1::PrefillRequest prefill;
  prefill.set_session_id(session.id());
  prefill.mutable_tokens()->add_ids(1);
  const auto refused = client::GetViolation(client().Prefill(prefill).status());
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->mask(), violation->mask());

  if (fault.name == "NON_FINITE") RestoreWeights(session.id());
  EXPECT_EQ(StepTokens(other.id(), 3),
            std::vector<int32_t>(expected.begin(), expected.begin() + 3));

  state = session.ClearLatch();
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->state(), v1::Session::STATE_IDLE);
  EXPECT_FALSE(state->has_violation());
  EXPECT_EQ(state->length_tokens(), 10);
  EXPECT_EQ(Digest(session.id()), digest);
  EXPECT_EQ(StepTokens(session.id(), 9),
            std::vector<int32_t>(expected.begin() + 3, expected.end()));
  EXPECT_EQ(Digest(session.id()), Digest(reference.id())) << "as if the bad step had never been";
}

INSTANTIATE_TEST_SUITE_P(EachInvariant, LatchE2e, ::testing::ValuesIn(Faults()),
                         [](const auto& info) { return info.param.name; });

using LatchCallsE2e = LatchE2e;

// Smaller than a page or not, a session's own capacity is what is checked.
TEST_F(LatchCallsE2e, CapacityIsTheSessionsOwn) {
  const client::Session session = OpenWithPrompt(RandomPrompt(4), kCapacity);
  Inject(session.id(), {"", 0, [](auto& r) { r.set_seqlens_k(kCapacity); }});
  const auto violation =
      client::GetViolation(client().OpenStepStream(session.id())->Step().status());
  ASSERT_TRUE(violation.has_value());
  EXPECT_EQ(violation->mask(), 16u);
  EXPECT_EQ(violation->value(), kCapacity + 1);
  EXPECT_EQ(violation->limit(), kCapacity);
}

TEST_F(LatchCallsE2e, TruncateAndResetClearItToo) {
  const std::vector<int32_t> prompt = RandomPrompt(8);
  const Fault fault = Faults()[5];
  const client::Session session = OpenWithPrompt(prompt);
  const std::vector<int32_t> expected = StepTokens(session.id(), 3);
  Inject(session.id(), fault);
  EXPECT_FALSE(client().OpenStepStream(session.id())->Step().ok());
  auto state = session.Truncate(5);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->length_tokens(), 5);
  EXPECT_FALSE(state->has_violation());
  EXPECT_FALSE(state->has_next_token_id());
  Prefill(session.id(), {prompt.begin() + 5, prompt.end()});
  EXPECT_EQ(StepTokens(session.id(), 3), expected);

  Inject(session.id(), fault);
  EXPECT_FALSE(client().OpenStepStream(session.id())->Step().ok());
  state = session.Reset();
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->length_tokens(), 0);
  Prefill(session.id(), prompt);
  EXPECT_EQ(StepTokens(session.id(), 3), expected);
}

TEST_F(LatchCallsE2e, GenerateFinishesWithTheViolation) {
  const client::Session session = OpenWithPrompt(RandomPrompt(6), kCapacity);
  Inject(session.id(), Faults()[6]);
  v1::GenerateRequest request;
  request.set_session_id(session.id());
  request.set_max_tokens(8);
  const auto finish = client().Generate(request, nullptr);
  ASSERT_TRUE(finish.ok()) << finish.status();
  EXPECT_EQ(finish->reason(), v1::FINISH_REASON_VIOLATION);
  EXPECT_THAT(client::InvariantNames(finish->violation()), Contains("TOKEN_RANGE"));
}

TEST_F(LatchCallsE2e, StreamGoesOnAfterAViolation) {
  const std::vector<int32_t> prompt = RandomPrompt(6);
  const client::Session good = OpenWithPrompt(prompt), bad = OpenWithPrompt(prompt);
  Inject(bad.id(), Faults()[5]);
  const auto stream = client().OpenStepStream();
  for (const uint64_t id : {bad.id(), good.id(), bad.id(), good.id()}) {
    v1::StepRequest request;
    request.set_session_id(id);
    ASSERT_TRUE(stream->Send(request).ok());
  }
  for (const bool violated : {true, false, true, false}) {
    const auto response = stream->Receive();
    ASSERT_TRUE(response.ok()) << response.status();
    EXPECT_EQ(response->has_violation(), violated);
    EXPECT_EQ(response->has_result(), !violated);
  }
}

}  // namespace
}  // namespace latchd::e2e
