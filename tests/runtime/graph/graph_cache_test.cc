#include "runtime/graph/graph_cache.h"

#include <vector>

#include "runtime/device/cpu_device.h"
#include "tests/support/faulty_device.h"
#include "tests/support/status_matchers.h"

namespace latchd {
namespace {

using testing::Fails;
using testing::FaultyDevice;
using testing::IsOk;
using enum absl::StatusCode;

// A step of three uploads, each of which shows in `out` when it has run.
struct GraphCacheTest : ::testing::Test {
  FaultyDevice device{CreateCpuDevice(1)};
  GraphCache cache{device, 2};
  std::vector<int> in = {1, 2, 3}, out = {0, 0, 0};

  const GraphCache::Launch launch = [this](Device& d) {
    for (size_t i = 0; i < in.size(); ++i) {
      const OpCall call = {UploadOp{&in[i], &out[i], sizeof(int)}, -1, "inputs"};
      if (absl::Status status = d.Run(call); !status.ok()) return status;
    }
    return absl::OkStatus();
  };

  static Signature Rows(int32_t rows) { return {.backend = "cpu", .rows = rows}; }
  void WarmAndCapture(int32_t rows) {
    ASSERT_THAT(cache.Warm(Rows(rows), launch), IsOk());
    ASSERT_THAT(cache.Capture(Rows(rows), Rows(rows), launch), IsOk());
  }
};

TEST_F(GraphCacheTest, WarmThenCaptureThenReplay) {
  ASSERT_THAT(cache.Warm(Rows(1), launch), IsOk());
  EXPECT_EQ(out, in) << "the warm run is eager";
  EXPECT_GE(device.calls(FaultyDevice::Kind::kSynchronize), 1) << "and is waited for";
  out = {0, 0, 0};
  ASSERT_THAT(cache.Capture(Rows(1), Rows(1), launch), IsOk());
  EXPECT_EQ(out, (std::vector<int>{0, 0, 0})) << "a capture only records";
  in = {7, 8, 9};
  ASSERT_THAT(cache.Replay(Rows(1)), IsOk());
  EXPECT_EQ(out, in) << "a replay reads the data of its moment";
}

TEST_F(GraphCacheTest, EachStepOutOfOrderIsRefusedAndNamesTheSignature) {
  const std::string text = Rows(1).ToString();
  EXPECT_THAT(cache.Capture(Rows(1), Rows(1), launch),
              Fails(kFailedPrecondition, "warm the fixed decode shape first"));
  EXPECT_THAT(cache.Capture(Rows(1), Rows(1), launch), Fails(kFailedPrecondition, text));
  EXPECT_THAT(cache.Replay(Rows(1)), Fails(kFailedPrecondition, text));
  ASSERT_THAT(cache.Warm(Rows(1), launch), IsOk());
  EXPECT_THAT(cache.Replay(Rows(1)), Fails(kFailedPrecondition, "no captured graph"));
  EXPECT_THAT(cache.Capture(Rows(2), Rows(2), launch), Fails(kFailedPrecondition, "not warmed"))
      << "another signature is not warmed by this one";
  ASSERT_THAT(cache.Capture(Rows(1), Rows(1), launch), IsOk());
  EXPECT_THAT(cache.Replay(Rows(1)), IsOk());
}

TEST_F(GraphCacheTest, ACaptureOfAnotherStepThanTheWarmedOneNamesBothAndUnwarms) {
  ASSERT_THAT(cache.Warm(Rows(1), launch), IsOk());
  const absl::Status status = cache.Capture(Rows(1), Rows(2), launch);
  EXPECT_THAT(status, Fails(kFailedPrecondition, Rows(1).ToString()));
  EXPECT_THAT(status, Fails(kFailedPrecondition, Rows(2).ToString()));
  EXPECT_THAT(cache.Capture(Rows(1), Rows(1), launch), Fails(kFailedPrecondition, "not warmed"));
  EXPECT_FALSE(device.capturing());
}

TEST_F(GraphCacheTest, CountsHitsMissesCapturesAndReplays) {
  WarmAndCapture(1);
  WarmAndCapture(2);
  for (int i = 0; i < 3; ++i) ASSERT_THAT(cache.Replay(Rows(2)), IsOk());
  ASSERT_THAT(cache.Replay(Rows(1)), IsOk());
  EXPECT_FALSE(cache.Replay(Rows(4)).ok());
  EXPECT_EQ(cache.counters().hits, 4);
  EXPECT_EQ(cache.counters().misses, 1);
  EXPECT_EQ(cache.counters().captures, 2);

  const std::vector<const GraphCache::Entry*> entries = cache.entries();
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0]->signature, Rows(1)) << "in order of rows";
  EXPECT_EQ(entries[0]->replays, 1);
  EXPECT_EQ(entries[1]->replays, 3);
  EXPECT_EQ(cache.bytes(), entries[0]->graph->bytes() + entries[1]->graph->bytes());
  EXPECT_GT(cache.bytes(), 0u);
}

TEST_F(GraphCacheTest, HoldsAtMostItsBoundOfGraphs) {
  WarmAndCapture(1);
  WarmAndCapture(2);
  ASSERT_THAT(cache.Warm(Rows(4), launch), IsOk());
  EXPECT_THAT(cache.Capture(Rows(4), Rows(4), launch),
              Fails(kResourceExhausted, "holds 2 graphs, its limit"));
  EXPECT_THAT(cache.Capture(Rows(4), Rows(4), launch),
              Fails(kResourceExhausted, Rows(4).ToString()));
  EXPECT_FALSE(device.capturing());
  EXPECT_THAT(cache.Replay(Rows(1)), IsOk());
  // Recording a signature again replaces its graph: nothing piles up.
  EXPECT_THAT(cache.Capture(Rows(1), Rows(1), launch), IsOk());
  EXPECT_EQ(cache.entries().size(), 3u);
}

TEST_F(GraphCacheTest, AFailedWarmRunUnwarms) {
  for (int64_t nth = 1; nth <= 3; ++nth) {
    ASSERT_THAT(cache.Warm(Rows(1), launch), IsOk());
    device.FailOn(FaultyDevice::Kind::kRun, nth);
    EXPECT_THAT(cache.Warm(Rows(1), launch), Fails(kInternal, "injected fault in run"));
    EXPECT_THAT(cache.Capture(Rows(1), Rows(1), launch), Fails(kFailedPrecondition, "not warmed"));
  }
  device.FailOn(FaultyDevice::Kind::kSynchronize, 1);
  EXPECT_THAT(cache.Warm(Rows(1), launch), Fails(kInternal, "synchronize"));
  EXPECT_THAT(cache.Capture(Rows(1), Rows(1), launch), Fails(kFailedPrecondition, "not warmed"));
}

TEST_F(GraphCacheTest, AFailureWhileRecordingEndsTheCaptureAndUnwarms) {
  for (int64_t nth = 1; nth <= 3; ++nth) {
    ASSERT_THAT(cache.Warm(Rows(1), launch), IsOk());
    device.FailOn(FaultyDevice::Kind::kRun, nth);
    EXPECT_THAT(cache.Capture(Rows(1), Rows(1), launch), Fails(kInternal, "injected fault in run"));
    EXPECT_FALSE(device.capturing());
    EXPECT_THAT(device.Allocate(8, MemoryKind::kDevice, "after"), IsOk());
    EXPECT_THAT(cache.Replay(Rows(1)), Fails(kFailedPrecondition, "no captured graph"));
    EXPECT_THAT(cache.Capture(Rows(1), Rows(1), launch), Fails(kFailedPrecondition, "not warmed"));
  }
  EXPECT_EQ(cache.counters().captures, 0);
  WarmAndCapture(1);
  EXPECT_THAT(cache.Replay(Rows(1)), IsOk());
}

TEST_F(GraphCacheTest, AFailedReplayComesBack) {
  WarmAndCapture(1);
  device.FailOn(FaultyDevice::Kind::kReplay, 1);
  EXPECT_THAT(cache.Replay(Rows(1)), Fails(kInternal, "injected fault in replay"));
}

}  // namespace
}  // namespace latchd
