#include "client/retry.h"

#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <sstream>

#include "google/rpc/error_details.pb.h"
#include "tests/client/fake_server.h"

namespace latchd::client {
namespace {

grpc::Status Draining(int64_t delay_ms) {
  google::rpc::RetryInfo info;
  info.mutable_retry_delay()->set_nanos(static_cast<int32_t>(delay_ms * 1'000'000));
  return StatusWithDetail(grpc::StatusCode::UNAVAILABLE, "draining", info);
}

// Every RPC through the client's own method.
std::map<std::string, std::function<absl::Status(Client&)>> AllCalls() {
  return {
      {"GetModel", [](Client& c) { return c.GetModel().status(); }},
      {"GetStatus", [](Client& c) { return c.GetStatus().status(); }},
      {"OpenSession", [](Client& c) { return c.OpenSession().status(); }},
      {"GetSession", [](Client& c) { return c.GetSession(1).status(); }},
      {"ListSessions", [](Client& c) { return c.ListSessions().status(); }},
      {"ClearLatch", [](Client& c) { return c.ClearLatch(1).status(); }},
      {"Truncate", [](Client& c) { return c.Truncate(1, 2).status(); }},
      {"Reset", [](Client& c) { return c.Reset(1).status(); }},
      {"CloseSession", [](Client& c) { return c.CloseSession(1); }},
      {"Prefill", [](Client& c) { return c.Prefill({}).status(); }},
      {"Step", [](Client& c) { return c.OpenStepStream(1)->Step().status(); }},
      {"Generate", [](Client& c) { return c.Generate({}, nullptr).status(); }},
      {"Tokenize", [](Client& c) { return c.Tokenize({}).status(); }},
      {"Detokenize", [](Client& c) { return c.Detokenize({1}).status(); }},
      {"ApplyChatTemplate", [](Client& c) { return c.ApplyChatTemplate({}).status(); }},
      {"InjectFault", [](Client& c) { return c.InjectFault({}); }},
      {"GetKvDigest", [](Client& c) { return c.GetKvDigest(1).status(); }},
  };
}

// RPC name -> whether the comment above it in the proto says "Idempotent".
std::map<std::string, bool> IdempotentByProto() {
  std::ifstream file(LATCHD_DECODE_PROTO);
  std::map<std::string, bool> result;
  std::string line, comment;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string first, second;
    words >> first >> second;
    if (first == "//") {
      comment += line;
    } else if (first == "rpc") {
      const std::string name = second.substr(0, second.find('('));
      result[name] = comment.find("Idempotent") != std::string::npos;
      comment.clear();
    } else {
      comment.clear();
    }
  }
  return result;
}

TEST(Retry, FollowsTheProtosWordForEveryRpc) {
  const auto idempotent = IdempotentByProto();
  const auto calls = AllCalls();
  ASSERT_EQ(idempotent.size(), calls.size());
  for (const auto& [name, is_idempotent] : idempotent) {
    ASSERT_TRUE(calls.contains(name)) << "the client has no call for " << name;
    FakeServer server;
    server.service.FailNext(100, grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone"));
    const auto client = server.Connect(/*max_retries=*/2);
    ASSERT_NE(client, nullptr);
    EXPECT_TRUE(absl::IsUnavailable(calls.at(name)(*client))) << name;
    EXPECT_EQ(server.service.calls(name), is_idempotent ? 3 : 1) << name;
  }
}

TEST(Retry, SucceedsWhenTheServerComesBack) {
  FakeServer server;
  server.service.FailNext(2, grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone"));
  EXPECT_TRUE(server.Connect()->GetModel().ok());
  EXPECT_EQ(server.service.calls("GetModel"), 3);
}

TEST(Retry, LeavesOtherErrorsAlone) {
  for (const auto code : {grpc::StatusCode::INVALID_ARGUMENT, grpc::StatusCode::NOT_FOUND,
                          grpc::StatusCode::ABORTED, grpc::StatusCode::INTERNAL}) {
    FakeServer server;
    server.service.FailNext(100, grpc::Status(code, "no"));
    EXPECT_FALSE(server.Connect()->GetSession(1).ok());
    EXPECT_EQ(server.service.calls("GetSession"), 1) << code;
  }
}

TEST(Retry, WaitsAsLongAsTheServerAsks) {
  FakeServer server;
  server.service.FailNext(1, Draining(120));
  const auto client = server.Connect();
  const absl::Time start = absl::Now();
  EXPECT_TRUE(client->GetStatus().ok());
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(120));
}

TEST(Retry, GivesUpAtOnceWhenTheDeadlineIsNearer) {
  FakeServer server;
  server.service.FailNext(100, Draining(900));
  ClientOptions options;
  options.call_timeout = absl::Milliseconds(400);
  const auto client = Client::Connect(server.address(), options);
  ASSERT_TRUE(client.ok());
  const absl::Time start = absl::Now();
  EXPECT_TRUE(absl::IsUnavailable((*client)->GetStatus().status()));
  EXPECT_LT(absl::Now() - start, absl::Milliseconds(390));
  EXPECT_EQ(server.service.calls("GetStatus"), 1);
}

TEST(RetryDelay, GrowsToItsBoundWithJitterBelow) {
  RetryPolicy policy;
  policy.initial_backoff = absl::Milliseconds(100);
  policy.max_backoff = absl::Milliseconds(1000);
  policy.multiplier = 3.0;
  const absl::Status status = absl::UnavailableError("gone");
  EXPECT_EQ(RetryDelay(policy, 0, 0.0, status), absl::Milliseconds(100));
  EXPECT_EQ(RetryDelay(policy, 1, 0.0, status), absl::Milliseconds(300));
  EXPECT_EQ(RetryDelay(policy, 9, 0.0, status), absl::Milliseconds(1000));
  std::mt19937 random(std::random_device{}());
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  for (int i = 0; i < 100; ++i) {
    const absl::Duration delay = RetryDelay(policy, 0, uniform(random), status);
    EXPECT_GE(delay, absl::Milliseconds(50));
    EXPECT_LE(delay, absl::Milliseconds(100));
  }
}

TEST(RetryDelay, HonoursRetryInfoAsALowerBound) {
  const absl::Status status = FromGrpcStatus(Draining(700));
  EXPECT_EQ(RetryDelay(RetryPolicy(), 0, 0.5, status), absl::Milliseconds(700));
  EXPECT_TRUE(IsRetryable(status));
  EXPECT_FALSE(IsRetryable(absl::OkStatus()));
}

}  // namespace
}  // namespace latchd::client
