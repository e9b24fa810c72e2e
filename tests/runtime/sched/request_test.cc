#include "runtime/sched/request.h"

#include <set>
#include <utility>

#include "tests/support/status_matchers.h"

namespace latchd {
namespace {

using testing::Fails;
using testing::IsOk;
using State = Request::State;

constexpr State kStates[] = {State::kQueued, State::kPrefilling, State::kDecoding, State::kDone};
constexpr const char* kNames[] = {"queued", "prefilling", "decoding", "done"};

TEST(RequestState, EachPairIsAllowedExactlyWhenListed) {
  const std::set<std::pair<int, int>> allowed = {{0, 1}, {0, 2}, {0, 3}, {1, 2}, {1, 3}, {2, 3}};
  for (int from = 0; from < 4; ++from) {
    for (int to = 0; to < 4; ++to) {
      Request request;
      request.id = 42;
      request.state = kStates[from];
      const absl::Status status = request.SetState(kStates[to]);
      if (allowed.contains({from, to})) {
        EXPECT_THAT(status, IsOk()) << kNames[from] << " to " << kNames[to];
        EXPECT_EQ(request.state, kStates[to]);
        continue;
      }
      EXPECT_THAT(status,
                  Fails(absl::StatusCode::kInternal,
                        std::string("no transition from ") + kNames[from] + " to " + kNames[to]));
      EXPECT_THAT(status, Fails(absl::StatusCode::kInternal, "request 42"));
      EXPECT_EQ(request.state, kStates[from]) << "a refused transition changes nothing";
    }
  }
}

}  // namespace
}  // namespace latchd
