#include "client/step_stream.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "tests/client/fake_server.h"

namespace latchd::client {
namespace {

// Answers with the request's own tag and token, so that a swapped answer shows.
v1::StepResponse EchoStep(const v1::StepRequest& request) {
  v1::StepResponse response;
  response.set_session_id(request.session_id());
  response.set_tag(request.tag());
  response.mutable_result()->set_appended_token_id(
      request.has_forced_token_id() ? request.forced_token_id() : -7);
  return response;
}

TEST(StepStream, StepAndStepForced) {
  FakeServer server;
  server.service.step = EchoStep;
  const auto client = server.Connect();
  const auto stream = client->OpenStepStream(3);
  EXPECT_EQ(stream->Step()->appended_token_id(), -7);
  EXPECT_EQ(stream->StepForced(41)->appended_token_id(), 41);
  EXPECT_EQ(stream->StepForced(0)->appended_token_id(), 0) << "0 is a token, not \"unset\"";
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(stream->Step().status()));
}

TEST(StepStream, PipelinedAnswersComeInOrder) {
  FakeServer server;
  server.service.step = EchoStep;
  const auto client = server.Connect();
  const auto stream = client->OpenStepStream();
  std::mt19937_64 random(std::random_device{}());
  std::vector<uint64_t> tags;
  for (int i = 0; i < 200; ++i) {
    v1::StepRequest request;
    request.set_session_id(i % 3 + 1);
    request.set_tag(tags.emplace_back(random()));
    ASSERT_TRUE(stream->Send(request).ok());
  }
  EXPECT_EQ(stream->outstanding(), 200);
  EXPECT_TRUE(absl::IsFailedPrecondition(stream->Step().status()));
  for (int i = 0; i < 200; ++i) {
    const auto response = stream->Receive();
    ASSERT_TRUE(response.ok());
    EXPECT_EQ(response->tag(), tags[i]);
    EXPECT_EQ(response->session_id(), static_cast<uint64_t>(i % 3 + 1));
  }
  EXPECT_TRUE(absl::IsOutOfRange(stream->Receive().status()));
  EXPECT_TRUE(stream->Step().ok());
}

TEST(StepStream, OneThreadSendsWhileAnotherReceives) {
  FakeServer server;
  server.service.step = EchoStep;
  const auto client = server.Connect();
  const auto stream = client->OpenStepStream();
  std::thread sender([&] {
    for (uint64_t i = 0; i < 500; ++i) {
      v1::StepRequest request;
      request.set_tag(i);
      ASSERT_TRUE(stream->Send(request).ok());
    }
  });
  for (uint64_t i = 0; i < 500;) {
    const auto response = stream->Receive();
    if (absl::IsOutOfRange(response.status())) continue;
    ASSERT_TRUE(response.ok());
    EXPECT_EQ(response->tag(), i++);
  }
  sender.join();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST(StepStream, InBandRefusalsAreErrorsAndTheStreamGoesOn) {
  FakeServer server;
  server.service.step = [](const v1::StepRequest& request) {
    v1::StepResponse response = EchoStep(request);
    if (request.forced_token_id() == 1) {
      response.mutable_violation()->set_mask(64);
      response.mutable_violation()->add_invariants(v1::INVARIANT_TOKEN_RANGE);
    } else if (request.forced_token_id() == 2) {
      response.mutable_error()->set_code(static_cast<int>(absl::StatusCode::kAborted));
      response.mutable_error()->set_message("busy");
    } else if (request.forced_token_id() == 3) {
      response.clear_outcome();
    }
    return response;
  };
  const auto client = server.Connect();
  const auto stream = client->OpenStepStream(1);
  const absl::Status violated = stream->StepForced(1).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(violated));
  ASSERT_TRUE(GetViolation(violated).has_value());
  EXPECT_EQ(GetViolation(violated)->mask(), 64u);
  const absl::Status aborted = stream->StepForced(2).status();
  EXPECT_TRUE(absl::IsAborted(aborted));
  EXPECT_FALSE(GetViolation(aborted).has_value());
  EXPECT_TRUE(absl::IsInternal(stream->StepForced(3).status()));
  EXPECT_TRUE(stream->StepForced(9).ok());
}

TEST(StepStream, ErrorOfTheCallSticks) {
  FakeServer server;
  server.service.step = EchoStep;
  server.service.FailNext(1, grpc::Status(grpc::StatusCode::UNAVAILABLE, "draining"));
  const auto client = server.Connect();
  const auto stream = client->OpenStepStream(1);
  EXPECT_TRUE(absl::IsUnavailable(stream->Step().status()));
  EXPECT_TRUE(absl::IsUnavailable(stream->Step().status()));
  EXPECT_TRUE(absl::IsUnavailable(stream->Finish()));
  EXPECT_EQ(server.service.calls("Step"), 1);
}

TEST(StepStream, CancelEndsABlockedReceive) {
  FakeServer server;
  absl::Notification release;
  server.service.step = [&](const v1::StepRequest& request) {
    release.WaitForNotificationWithTimeout(absl::Seconds(10));
    return EchoStep(request);
  };
  const auto client = server.Connect();
  Cancellation cancellation;
  const auto stream = client->OpenStepStream(1, &cancellation);
  std::thread canceller([&] {
    absl::SleepFor(absl::Milliseconds(50));
    cancellation.Cancel();
  });
  EXPECT_TRUE(absl::IsCancelled(stream->Step().status()));
  canceller.join();
  release.Notify();
}

}  // namespace
}  // namespace latchd::client
