#include "client/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "google/rpc/error_details.pb.h"
#include "tests/client/fake_server.h"

namespace latchd::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::InvariantViolation CapacityViolation() {
  v1::InvariantViolation violation;
  violation.set_mask(16 | 32);
  violation.add_invariants(v1::INVARIANT_PRESENT_CAPACITY);
  violation.add_invariants(v1::INVARIANT_POSITION);
  violation.set_layer(-1);
  violation.set_value(9);
  violation.set_limit(8);
  violation.set_message("PRESENT_CAPACITY: total 9 exceeds capacity 8");
  return violation;
}

TEST(Connect, SaysThatNobodyListens) {
  std::string address;
  {
    FakeServer server;
    address = server.address();
  }
  const absl::Time start = absl::Now();
  const auto client = Client::Connect(address);
  EXPECT_TRUE(absl::IsUnavailable(client.status()));
  EXPECT_THAT(std::string(client.status().message()), HasSubstr(address));
  EXPECT_LT(absl::Now() - start, absl::Seconds(4)) << "a refused connection needs no timeout";
}

TEST(Errors, ViolationTravelsInTheStatusDetails) {
  FakeServer server;
  server.service.FailNext(
      1, StatusWithDetail(grpc::StatusCode::FAILED_PRECONDITION, "violated", CapacityViolation()));
  const auto response = server.Connect()->Prefill({});
  EXPECT_TRUE(absl::IsFailedPrecondition(response.status()));
  const auto violation = GetViolation(response.status());
  ASSERT_TRUE(violation.has_value());
  EXPECT_EQ(violation->value(), 9);
  EXPECT_EQ(violation->limit(), 8);
  EXPECT_THAT(InvariantNames(*violation), ElementsAre("PRESENT_CAPACITY", "POSITION"));
  EXPECT_FALSE(GetRetryDelay(response.status()).has_value());
}

TEST(Errors, DetailsThatAreNoProtoLeaveCodeAndMessage) {
  const absl::Status status =
      FromGrpcStatus(grpc::Status(grpc::StatusCode::NOT_FOUND, "session 7", "\xff\xff junk"));
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_EQ(std::string(status.message()), "session 7");
  EXPECT_FALSE(GetViolation(status).has_value());
}

TEST(Errors, UnknownInvariantKeepsItsNumber) {
  v1::InvariantViolation violation;
  violation.add_invariants(static_cast<v1::Invariant>(77));
  EXPECT_THAT(InvariantNames(violation), ElementsAre("INVARIANT_77"));
}

TEST(SessionTest, ClosesWhenItGoes) {
  FakeServer server;
  auto client = server.Connect();
  uint64_t id = 0;
  {
    auto session = client->OpenSession();
    ASSERT_TRUE(session.ok());
    id = session->id();
    client.reset();  // the handle outlives the client
  }
  EXPECT_THAT(server.service.closed(), ElementsAre(id));
}

TEST(SessionTest, ReleasedClosedAndMovedOnesCloseOnceOrNever) {
  FakeServer server;
  const auto client = server.Connect();
  {
    auto released = client->OpenSession();
    EXPECT_NE(released->Release(), 0u);
    EXPECT_EQ(released->id(), 0u);
  }
  EXPECT_TRUE(server.service.closed().empty());
  {
    auto opened = client->OpenSession();
    Session moved = *std::move(opened);
    const uint64_t id = moved.id();
    EXPECT_TRUE(moved.Close().ok());
    EXPECT_TRUE(moved.Close().ok());
    EXPECT_THAT(server.service.closed(), ElementsAre(id));
  }
  EXPECT_EQ(server.service.calls("CloseSession"), 1);
  EXPECT_TRUE(absl::IsFailedPrecondition(Session().Get().status()));
}

TEST(SessionTest, CloseForgivesASessionThatItsTtlClosed) {
  FakeServer server;
  auto session = server.Connect()->OpenSession();
  server.service.FailNext(1, grpc::Status(grpc::StatusCode::NOT_FOUND, "no such session"));
  EXPECT_TRUE(session->Close().ok());
}

TEST(SessionTest, DestructionDoesNotHangOnADeadServer) {
  FakeServer server;
  auto session = server.Connect()->OpenSession();
  server.Stop();
  const absl::Time start = absl::Now();
  *session = Session();
  EXPECT_LT(absl::Now() - start, absl::Seconds(3));
}

TEST(Generate, GivesTokensInOrderAndTheFinish) {
  FakeServer server;
  server.service.generate_tokens = 50;
  std::vector<int32_t> ids;
  const auto finish = server.Connect()->Generate({}, [&](const v1::GenerateResponse::Token& token) {
    ids.push_back(token.next().token_id());
    return true;
  });
  ASSERT_TRUE(finish.ok()) << finish.status();
  EXPECT_EQ(finish->reason(), v1::FINISH_REASON_LENGTH);
  ASSERT_EQ(ids.size(), 50u);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(ids[i], i);
}

TEST(Generate, MissingFinishIsAnError) {
  FakeServer server;
  server.service.generate_finish = false;
  EXPECT_TRUE(absl::IsInternal(server.Connect()->Generate({}, nullptr).status()));
}

TEST(Generate, CallbackCancels) {
  FakeServer server;
  server.service.generate_tokens = 100'000;
  server.service.generate_pause = absl::Milliseconds(1);
  int seen = 0;
  const auto finish = server.Connect()->Generate(
      {}, [&](const v1::GenerateResponse::Token&) { return ++seen < 4; });
  EXPECT_TRUE(absl::IsCancelled(finish.status()));
  EXPECT_EQ(seen, 4);
  EXPECT_TRUE(server.service.generate_cancelled.WaitForNotificationWithTimeout(absl::Seconds(5)));
}

TEST(Generate, CancellationFromAnotherThreadEndsItAndLaterCalls) {
  FakeServer server;
  server.service.generate_tokens = 100'000;
  server.service.generate_pause = absl::Milliseconds(1);
  const auto client = server.Connect();
  Cancellation cancellation;
  const CallOptions options{std::nullopt, &cancellation};
  std::thread canceller([&] {
    absl::SleepFor(absl::Milliseconds(50));
    cancellation.Cancel();
  });
  EXPECT_TRUE(absl::IsCancelled(client->Generate({}, nullptr, options).status()));
  canceller.join();
  EXPECT_TRUE(absl::IsCancelled(client->Prefill({}, options).status()));
  cancellation.Clear();
  EXPECT_TRUE(client->Prefill({}, options).ok());
}

TEST(Generate, TimeoutIsADeadline) {
  FakeServer server;
  server.service.generate_tokens = 100'000;
  server.service.generate_pause = absl::Milliseconds(1);
  const auto finish = server.Connect()->Generate({}, nullptr, {absl::Milliseconds(60), nullptr});
  EXPECT_TRUE(absl::IsDeadlineExceeded(finish.status())) << finish.status();
}

}  // namespace
}  // namespace latchd::client
