// How work ends: cancel, deadline, TTL, close, violation, device fault.

#include <functional>

#include "tests/runtime/sched/puppet.h"

namespace latchd {
namespace {

using testing::Answer;
using testing::Fails;
using testing::FaultyDevice;
using testing::GenerateAnswer;
using testing::IsOk;
using testing::Puppet;
using enum absl::StatusCode;

// A prompt of three chunks and five tokens, and what the session holds at each length on the way.
struct Course {
  std::vector<int32_t> prompt, tokens;
  std::vector<std::string> digests;  // by applied tokens after the prompt

  Course(Puppet& puppet, reference::Random& random) : prompt(puppet.RandomPrompt(random, 20)) {
    const SessionId session = puppet.Open();
    auto prefill = puppet.Prefill({.session = session, .tokens = prompt});
    puppet.RunUntilIdle();
    tokens.push_back((*prefill)->next.token);
    digests.push_back(puppet.Digest(session));
    while (tokens.size() < 5) {
      auto step = puppet.Step({.session = session});
      puppet.RunUntilIdle();
      tokens.push_back((*step)->next.token);
      digests.push_back(puppet.Digest(session));
    }
    EXPECT_THAT(puppet.loop->Close(session), IsOk());
  }
};

// Ends a generation by `end` after each possible number of turns: its length is what was applied,
// its KV is what it would have been, and it goes on as if it had not been interrupted.
void ExpectExactAfterEach(FinishReason reason,
                          const std::function<void(Puppet&, GenerateAnswer&)>& end) {
  reference::Random random;
  SCOPED_TRACE(random.note());
  Puppet puppet({.seed = random.Word()});
  const Course course(puppet, random);
  for (int turns = 0; turns <= 6; ++turns) {
    SCOPED_TRACE("after " + std::to_string(turns) + " turns");
    const SessionId session = puppet.Open();
    auto generation = puppet.Generate({.session = session,
                                       .prompt = course.prompt,
                                       .max_tokens = 5,
                                       .deadline = puppet.now + absl::Seconds(30)});
    puppet.Turns(turns);
    ASSERT_FALSE(generation->done());
    end(puppet, *generation);
    EXPECT_EQ(generation->calls, 1);
    EXPECT_EQ(generation->summary.reason, reason);
    const size_t seen = generation->events.size();
    EXPECT_EQ(generation->summary.generated_tokens, static_cast<int64_t>(seen));
    EXPECT_EQ(seen, static_cast<size_t>(std::max(0, turns - 2))) << "three turns of prefill";
    EXPECT_EQ(puppet.loop->requests(), 0u);
    EXPECT_FALSE(puppet.loop->Turn()) << "nothing of it is left in a queue";

    EXPECT_EQ(puppet.Info(session).state, SessionState::kIdle);
    EXPECT_EQ(puppet.Length(session), seen == 0 ? 0 : 20 + static_cast<int64_t>(seen) - 1);
    std::vector<int32_t> all = generation->tokens();
    if (seen > 0) {
      EXPECT_EQ(puppet.Digest(session), course.digests[seen - 1]);
    }
    GenerateRequest rest = {.session = session, .max_tokens = 5 - static_cast<int64_t>(seen)};
    if (seen == 0) rest.prompt = course.prompt;
    for (const int32_t token : puppet.RunGenerate(rest)->tokens()) all.push_back(token);
    EXPECT_EQ(all, course.tokens);
    EXPECT_EQ(puppet.Digest(session), course.digests.back());
    ASSERT_THAT(puppet.loop->Close(session), IsOk());
  }
}

TEST(StepLoopLifecycle, CancelAtEachPointLeavesTheExactLength) {
  ExpectExactAfterEach(FinishReason::kCancelled, [](Puppet& puppet, GenerateAnswer& generation) {
    puppet.loop->Cancel(generation.id);
    puppet.loop->Cancel(generation.id);  // idempotent
  });
}

TEST(StepLoopLifecycle, ADeadlineAtEachPointLeavesTheExactLength) {
  ExpectExactAfterEach(FinishReason::kDeadline, [](Puppet& puppet, GenerateAnswer&) {
    puppet.now += absl::Seconds(30);
    puppet.loop->Turn();
  });
}

TEST(StepLoopLifecycle, PrefillAndStepEndWithTheirStatusWhenCancelledOrLate) {
  Puppet puppet({.prefill_chunk = 4});
  const SessionId session = puppet.Open();
  const PrefillRequest long_prompt = {.session = session,
                                      .tokens = std::vector<int32_t>(10, 3),
                                      .deadline = puppet.now + absl::Seconds(5)};
  auto cancelled = puppet.Prefill(long_prompt);
  puppet.Turns(1);
  puppet.loop->Cancel(cancelled->id);
  EXPECT_EQ(cancelled->calls, 1);
  EXPECT_THAT(cancelled->result, Fails(kCancelled, "length is exact"));
  auto late = puppet.Prefill(long_prompt);
  puppet.Turns(2);
  puppet.now += absl::Seconds(5);
  puppet.Turns(1);
  EXPECT_THAT(late->result, Fails(kDeadlineExceeded, "length is exact"));
  EXPECT_EQ(puppet.Length(session), 0);

  puppet.Prefill({.session = session, .tokens = {1, 2}});
  puppet.RunUntilIdle();
  auto step = puppet.Step({.session = session, .deadline = puppet.now + absl::Seconds(1)});
  puppet.now += absl::Seconds(1);
  const int64_t replays = puppet.replays();
  puppet.Turns(1);
  EXPECT_THAT(step->result, Fails(kDeadlineExceeded, ""));
  EXPECT_EQ(puppet.replays(), replays);
  EXPECT_EQ(puppet.Length(session), 2);
}

TEST(StepLoopLifecycle, ADeadlineThatPassedInTheQueueIsNeverStarted) {
  Puppet puppet;
  const SessionId session = puppet.Open();
  auto prefill = puppet.Prefill({.session = session, .tokens = {1}, .deadline = puppet.now});
  EXPECT_THAT(prefill->result, Fails(kDeadlineExceeded, "in the queue"));
  auto generation =
      puppet.Generate({.session = session, .prompt = {1}, .deadline = absl::InfinitePast()});
  EXPECT_EQ(generation->summary.reason, FinishReason::kError);
  EXPECT_THAT(generation->summary.error, Fails(kDeadlineExceeded, "in the queue"));
  EXPECT_FALSE(puppet.loop->Turn());
}

TEST(StepLoopLifecycle, ASecondRequestOnABusySessionIsAborted) {
  Puppet puppet;
  const SessionId session = puppet.Open(), other = puppet.Open();
  auto first = puppet.Generate({.session = session, .prompt = {1, 2, 3}, .max_tokens = 4});
  const std::string busy = "busy with request " + std::to_string(first->id);
  for (int turn = 0; turn < 3; ++turn) {
    EXPECT_THAT(puppet.Step({.session = session})->result, Fails(kAborted, busy));
    EXPECT_THAT(puppet.Prefill({.session = session, .tokens = {1}})->result, Fails(kAborted, busy));
    auto second = puppet.Generate({.session = session, .prompt = {1}});
    EXPECT_EQ(second->summary.reason, FinishReason::kError);
    EXPECT_THAT(second->summary.error, Fails(kAborted, busy));
    EXPECT_THAT(puppet.loop->Truncate(session, 0), Fails(kAborted, busy));
    EXPECT_THAT(puppet.loop->ClearLatch(session), Fails(kAborted, busy));
    EXPECT_THAT(puppet.loop->KvDigest(session), Fails(kAborted, busy));
    EXPECT_THAT(puppet.loop->SetFault({.session = session}), Fails(kAborted, busy));
    puppet.Turns(1);
  }
  auto elsewhere = puppet.Prefill({.session = other, .tokens = {1}});
  puppet.RunUntilIdle();
  EXPECT_THAT(elsewhere->result, IsOk());
  EXPECT_EQ(first->calls, 1);
  EXPECT_EQ(first->summary.reason, FinishReason::kLength);
  EXPECT_EQ(first->events.size(), 4u);
}

TEST(StepLoopLifecycle, AnIdleSessionIsClosedAfterItsTtlByTheInjectedClock) {
  Puppet puppet;
  const absl::Time start = puppet.now;
  const SessionId brief = puppet.Open({.ttl = absl::Seconds(10)}), usual = puppet.Open();
  EXPECT_EQ(puppet.loop->NextDue(), start + absl::Seconds(10));
  puppet.now = start + absl::Seconds(10) - absl::Nanoseconds(1);
  puppet.Turns(1);
  EXPECT_EQ(puppet.loop->sessions(), 2u);

  auto prefill = puppet.Prefill({.session = brief, .tokens = {1}});
  EXPECT_EQ(puppet.loop->NextDue(), absl::InfinitePast()) << "work is waiting";
  puppet.RunUntilIdle();
  EXPECT_EQ(puppet.loop->NextDue(), puppet.now + absl::Seconds(10)) << "use restarts the TTL";

  const int64_t free = puppet.kv->free_tokens();
  puppet.now += absl::Seconds(10);
  puppet.Turns(1);
  EXPECT_THAT(puppet.loop->Get(brief), Fails(kNotFound, "is closed"));
  EXPECT_EQ(puppet.kv->free_tokens(), free + 128) << "its pages are back";
  EXPECT_EQ(puppet.loop->NextDue(), start + absl::Minutes(10)) << "the default TTL";
  puppet.now = start + absl::Minutes(10);
  puppet.Turns(1);
  EXPECT_THAT(puppet.loop->Get(usual), Fails(kNotFound, "is closed"));
  EXPECT_EQ(puppet.loop->NextDue(), absl::InfiniteFuture());
}

TEST(StepLoopLifecycle, ABusySessionOutlivesItsTtl) {
  Puppet puppet;
  const SessionId session = puppet.Open({.ttl = absl::Seconds(1)});
  auto generation = puppet.Generate({.session = session, .prompt = {1}, .max_tokens = 5});
  for (int turn = 0; turn < 5; ++turn) {
    puppet.now += absl::Hours(1);
    puppet.Turns(1);
  }
  EXPECT_EQ(generation->summary.reason, FinishReason::kLength);
  EXPECT_EQ(puppet.Length(session), 5);
  auto cancelled = puppet.Step({.session = session});
  puppet.now += absl::Hours(1);
  puppet.loop->Cancel(cancelled->id);
  EXPECT_EQ(puppet.loop->NextDue(), puppet.now + absl::Seconds(1)) << "idle from its end on";
}

TEST(StepLoopLifecycle, AnInjectedFaultIsUsedUpByOneStep) {
  Puppet puppet;
  const SessionId injected = puppet.Open(), forced = puppet.Open();
  for (const SessionId session : {injected, forced}) {
    puppet.Prefill({.session = session, .tokens = {1, 2, 3}});
  }
  puppet.RunUntilIdle();
  // A value that no invariant forbids: the step is applied, and only this one.
  ASSERT_THAT(puppet.loop->SetFault({.session = injected, .token = 7}), IsOk());
  puppet.Step({.session = injected});
  puppet.Step({.session = forced, .forced_token = 7});
  puppet.RunUntilIdle();
  for (const SessionId session : {injected, forced}) puppet.Step({.session = session});
  puppet.RunUntilIdle();
  EXPECT_EQ(puppet.Length(injected), 5);
  EXPECT_EQ(puppet.Digest(injected), puppet.Digest(forced));
  EXPECT_EQ(puppet.Info(injected).next_token, puppet.Info(forced).next_token);
}

TEST(StepLoopLifecycle, CloseEndsRunningWorkOnceAndIsIdempotent) {
  Puppet puppet;
  const int64_t free = puppet.kv->free_tokens();
  const SessionId session = puppet.Open();
  auto generation = puppet.Generate({.session = session, .prompt = {1, 2}, .max_tokens = 50});
  puppet.Turns(3);
  ASSERT_THAT(puppet.loop->Close(session), IsOk());
  EXPECT_EQ(generation->calls, 1);
  EXPECT_EQ(generation->summary.reason, FinishReason::kCancelled);
  EXPECT_EQ(puppet.kv->free_tokens(), free);
  EXPECT_FALSE(puppet.loop->Turn());
  EXPECT_THAT(puppet.loop->Close(session), IsOk());
  EXPECT_THAT(puppet.loop->Close(session + 1), Fails(kNotFound, "never opened"));
  EXPECT_GT(puppet.Open(), session) << "ids are not used again";
}

TEST(StepLoopLifecycle, TheLoopsEndAnswersWhatIsPending) {
  auto puppet = std::make_unique<Puppet>();
  const SessionId a = puppet->Open(), b = puppet->Open();
  auto generation = puppet->Generate({.session = a, .prompt = {1}, .max_tokens = 50});
  auto prefill = puppet->Prefill({.session = b, .tokens = {1}});
  puppet.reset();
  EXPECT_EQ(generation->calls, 1);
  EXPECT_EQ(generation->summary.reason, FinishReason::kCancelled);
  EXPECT_EQ(prefill->calls, 1);
  EXPECT_THAT(prefill->result, Fails(kCancelled, ""));
}

struct InjectedViolation {
  const char* name;
  FaultRequest fault;
};

// One session of three in a batch is violated. The other two get what they get without it; the
// poisoned one answers without a launch until it is cleared, and then goes on bit for bit.
TEST(StepLoopLifecycle, APoisonedSessionIsRefusedWhileOthersGoOn) {
  reference::Random random;
  SCOPED_TRACE(random.note());
  const InjectedViolation violations[] = {
      {"PRESENT_CAPACITY", {.seqlens_k = 128}}, {"TOTAL_OVERFLOW", {.seqlens_k = INT32_MAX}},
      {"PAST_NEGATIVE", {.seqlens_k = -2}},     {"POSITION", {.position = 128}},
      {"TOKEN_RANGE", {.token = 96}},           {"PAGE_TABLE", {.page = 1 << 20}}};
  Puppet puppet({.seed = random.Word()});
  const Course course(puppet, random);
  for (const InjectedViolation& violation : violations) {
    SCOPED_TRACE(violation.name);
    std::vector<SessionId> sessions;
    for (int i = 0; i < 3; ++i) {
      sessions.push_back(puppet.Open());
      puppet.Prefill({.session = sessions.back(), .tokens = course.prompt});
    }
    puppet.RunUntilIdle();
    FaultRequest fault = violation.fault;
    fault.session = sessions[1];
    ASSERT_THAT(puppet.loop->SetFault(fault), IsOk());
    std::vector<std::shared_ptr<Answer<StepResult>>> steps;
    for (const SessionId session : sessions) steps.push_back(puppet.Step({.session = session}));
    const int64_t replays = puppet.replays();
    puppet.RunUntilIdle();
    EXPECT_EQ(puppet.replays(), replays + 1) << "the three shared one step";
    for (const int i : {0, 2}) {
      ASSERT_THAT(steps[i]->result, IsOk());
      EXPECT_FALSE((*steps[i])->violation.has_value());
      EXPECT_EQ((*steps[i])->next.token, course.tokens[1]);
      EXPECT_EQ(puppet.Digest(sessions[i]), course.digests[1]);
    }
    ASSERT_THAT(steps[1]->result, IsOk());
    ASSERT_TRUE((*steps[1])->violation.has_value());
    const Violation& seen = *(*steps[1])->violation;
    EXPECT_NE(seen.text.find(violation.name), std::string::npos) << seen.text;
    EXPECT_EQ(seen.latch.row, 1);
    EXPECT_EQ((*steps[1])->length_tokens, 20);
    EXPECT_EQ(puppet.Info(sessions[1]).state, SessionState::kPoisoned);

    auto generation = puppet.Generate({.session = sessions[0], .max_tokens = 3});
    auto refused = puppet.Step({.session = sessions[1]});
    EXPECT_EQ(refused->calls, 1) << "known without a launch";
    EXPECT_EQ((*refused)->violation->latch.mask, seen.latch.mask);
    auto prefill = puppet.Prefill({.session = sessions[1], .tokens = {1}});
    EXPECT_TRUE((*prefill)->violation.has_value());
    auto poisoned = puppet.Generate({.session = sessions[1], .prompt = {1}});
    EXPECT_EQ(poisoned->summary.reason, FinishReason::kViolation);
    EXPECT_EQ(poisoned->summary.violation->text, seen.text);
    puppet.RunUntilIdle();
    EXPECT_EQ(generation->tokens(),
              std::vector<int32_t>(course.tokens.begin() + 2, course.tokens.end()));

    ASSERT_THAT(puppet.loop->ClearLatch(sessions[1]), IsOk());
    EXPECT_EQ(puppet.Digest(sessions[1]), course.digests[0]) << "the bad step wrote nothing";
    EXPECT_EQ(puppet.RunGenerate({.session = sessions[1], .max_tokens = 4})->tokens(),
              std::vector<int32_t>(course.tokens.begin() + 1, course.tokens.end()));
    EXPECT_EQ(puppet.Digest(sessions[1]), course.digests[4]);
    for (const SessionId session : sessions) ASSERT_THAT(puppet.loop->Close(session), IsOk());
  }
}

TEST(StepLoopLifecycle, AViolationInsideAGenerationEndsItWithTheTokensSoFar) {
  Puppet puppet;
  const SessionId session = puppet.Open();
  auto generation = puppet.Generate({.session = session, .prompt = {1, 2}, .max_tokens = 9});
  puppet.Turns(3);
  ASSERT_EQ(generation->events.size(), 3u);
  // As a broken kernel would: the fault is on the device, and the host does not know.
  ASSERT_THAT(puppet.kv->CorruptPageTable(1, 0, 999), IsOk());
  puppet.RunUntilIdle();
  EXPECT_EQ(generation->calls, 1);
  EXPECT_EQ(generation->summary.reason, FinishReason::kViolation);
  EXPECT_EQ(generation->summary.violation->latch.mask, uint32_t{kPageTable});
  EXPECT_EQ(generation->summary.generated_tokens, 3);
  EXPECT_EQ(puppet.Length(session), 4);
  ASSERT_THAT(puppet.loop->Truncate(session, 3), IsOk());
  EXPECT_EQ(puppet.Info(session).latch.mask, 0u);
  EXPECT_EQ(puppet.Length(session), 3);
  EXPECT_FALSE(puppet.Info(session).next_token.has_value());
  EXPECT_THAT(puppet.loop->Truncate(session, 4),
              Fails(kInvalidArgument, "length_tokens: expected 0..3, got 4"));
  EXPECT_EQ(puppet.RunGenerate({.session = session, .prompt = {5}, .max_tokens = 2})->calls, 1);
}

// Whatever the device breaks in, everything pending ends with it once, and nothing starts again.
TEST(StepLoopLifecycle, ADeviceFaultFailsEverythingAndSticks) {
  using Kind = FaultyDevice::Kind;
  for (const Kind kind : {Kind::kReplay, Kind::kRun, Kind::kDownload, Kind::kUpload}) {
    SCOPED_TRACE(static_cast<int>(kind));
    Puppet puppet;
    std::vector<SessionId> sessions;
    for (int i = 0; i < 4; ++i) {
      sessions.push_back(puppet.Open());
      puppet.Prefill({.session = sessions.back(), .tokens = {1, 2}});
    }
    puppet.RunUntilIdle();
    std::vector<std::shared_ptr<Answer<StepResult>>> steps;
    for (int i = 0; i < 2; ++i) {
      steps.push_back(
          puppet.Step({.session = sessions[i], .top_logprobs = 1, .want_logits = true}));
    }
    auto prefill = puppet.Prefill({.session = sessions[2], .tokens = {1, 2}});
    auto generation = puppet.Generate({.session = sessions[3], .max_tokens = 9});
    puppet.device.FailOn(kind, 1, /*sticky=*/true);
    puppet.RunUntilIdle();

    EXPECT_THAT(puppet.loop->fault(), Fails(kInternal, "device fault: "));
    EXPECT_THAT(puppet.loop->fault(), Fails(kInternal, "injected fault"));
    if (kind != Kind::kRun) {  // a prefill runs after the step, which was good
      for (const auto& step : steps) EXPECT_THAT(step->result, Fails(kInternal, "device fault: "));
    }
    for (const auto& step : steps) EXPECT_EQ(step->calls, 1);
    EXPECT_EQ(prefill->calls, 1);
    EXPECT_THAT(prefill->result, Fails(kInternal, "device fault: "));
    EXPECT_EQ(generation->calls, 1);
    EXPECT_EQ(generation->summary.reason, FinishReason::kError);
    EXPECT_THAT(generation->summary.error, Fails(kInternal, "device fault: "));
    EXPECT_EQ(puppet.loop->requests(), 0u);

    const std::string first(puppet.loop->fault().message());
    puppet.device.FailOn(Kind::kUpload, 1);
    EXPECT_THAT(puppet.Step({.session = sessions[0]})->result, Fails(kInternal, first));
    EXPECT_THAT(puppet.loop->Open({}), Fails(kInternal, first));
    EXPECT_EQ(puppet.loop->fault().message(), first) << "the first fault wins";
    EXPECT_FALSE(puppet.loop->Turn());
    EXPECT_THAT(puppet.loop->Close(sessions[0]), IsOk());
  }
}

}  // namespace
}  // namespace latchd
