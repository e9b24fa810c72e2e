// WorkerPool, WorkTracker, DrainSignal and CancelLink: the small pieces that streams are made of.

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <future>

#include "absl/time/clock.h"
#include "server/service_context.h"
#include "tests/server/fake_engine.h"

namespace latchd {
namespace {

TEST(WorkerPool, RefusesBeyondItsBoundButNeverCleanUp) {
  std::atomic<int> ran{0};
  std::promise<void> started, gate;
  auto open = gate.get_future().share();
  {
    WorkerPool pool(1, 2);
    pool.Run([&] {
      started.set_value();
      open.wait();
    });
    started.get_future().wait();
    EXPECT_TRUE(pool.TryRun([&] { ++ran; }));
    EXPECT_TRUE(pool.TryRun([&] { ++ran; }));
    EXPECT_FALSE(pool.TryRun([&] { ran += 100; }));
    pool.Run([&] { ++ran; });
    gate.set_value();
  }
  EXPECT_EQ(ran, 3) << "the destructor runs what is queued";
}

TEST(WorkTracker, KnowsTheOldestPendingStart) {
  WorkTracker tracker;
  EXPECT_FALSE(tracker.oldest());
  const absl::Time t = absl::UnixEpoch();
  auto a = tracker.Begin(t + absl::Seconds(2));
  auto b = tracker.Begin(t + absl::Seconds(1));
  auto same = tracker.Begin(t + absl::Seconds(1));
  EXPECT_EQ(*tracker.oldest(), t + absl::Seconds(1));
  b.reset();
  EXPECT_EQ(*tracker.oldest(), t + absl::Seconds(1));
  same.reset();
  EXPECT_EQ(*tracker.oldest(), t + absl::Seconds(2));
  a.reset();
  EXPECT_FALSE(tracker.oldest());
}

TEST(DrainSignal, TellsEachListenerOnce) {
  DrainSignal signal;
  int first = 0, second = 0, late = 0;
  signal.Subscribe([&] { ++first; });
  const uint64_t handle = signal.Subscribe([&] { ++second; });
  signal.Unsubscribe(handle);
  EXPECT_FALSE(signal.fired());
  signal.Fire();
  signal.Fire();
  signal.Subscribe([&] { ++late; });
  EXPECT_TRUE(signal.fired());
  EXPECT_EQ(first, 1);
  EXPECT_EQ(second, 0);
  EXPECT_EQ(late, 1);
}

TEST(CancelLink, ReachesTheEngineOnceInEitherOrder) {
  auto strings = std::make_shared<FakeEngine::Strings>();
  FakeEngine engine(strings);
  CancelLink before;
  before.Cancel(engine);
  EXPECT_TRUE(strings->cancels.empty());
  before.Submitted(engine, 11);
  before.Cancel(engine);
  EXPECT_EQ(strings->cancels, std::vector<RequestId>{11});
  CancelLink after;
  after.Submitted(engine, 12);
  EXPECT_FALSE(after.cancelled());
  after.Cancel(engine);
  after.Cancel(engine);
  EXPECT_EQ(strings->cancels, (std::vector<RequestId>{11, 12}));
}

TEST(Deadline, NoneIsInfinite) {
  EXPECT_EQ(ToAbslDeadline(std::chrono::system_clock::time_point::max()), absl::InfiniteFuture());
  const auto soon = std::chrono::system_clock::now() + std::chrono::seconds(5);
  EXPECT_EQ(ToAbslDeadline(soon), absl::FromChrono(soon));
}

}  // namespace
}  // namespace latchd
