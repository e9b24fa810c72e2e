#include "server/step_stream.h"

#include <thread>

#include "tests/server/server_fixture.h"

namespace latchd {
namespace {

class StepStreamTest : public ServerTest {
 protected:
  using Stream = grpc::ClientReaderWriter<v1::StepRequest, v1::StepResponse>;

  static v1::StepRequest Message(uint64_t session, uint64_t tag) {
    v1::StepRequest message;
    message.set_session_id(session);
    message.set_tag(tag);
    return message;
  }

  std::unique_ptr<grpc::ClientContext> context_ = Context();
};

TEST_F(StepStreamTest, AnswersInOrderThoughSessionsFinishOutOfOrder) {
  const uint64_t a = OpenSession(), b = OpenSession(), c = OpenSession();
  strings_->hold = true;
  auto stream = stub_->Step(context_.get());
  ASSERT_TRUE(stream->Write(Message(a, 1)));
  ASSERT_TRUE(stream->Write(Message(b, 2)));
  ASSERT_TRUE(stream->Write(Message(c, 3)));
  ASSERT_TRUE(engine_->WaitForHeld(3)) << "different sessions run at once";
  engine_->Answer(2);
  engine_->Answer(1);
  engine_->Answer(0);
  ASSERT_TRUE(stream->WritesDone());
  v1::StepResponse response;
  for (const auto& [session, tag] : {std::pair{a, 1u}, {b, 2u}, {c, 3u}}) {
    ASSERT_TRUE(stream->Read(&response));
    EXPECT_EQ(response.tag(), tag);
    EXPECT_EQ(response.session_id(), session);
    EXPECT_EQ(response.result().length_tokens(), 1);
    EXPECT_EQ(response.result().next().text(), "b");
  }
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(StepStreamTest, RunsOneSessionsStepsOneAfterTheOther) {
  const uint64_t session = OpenSession();
  strings_->hold = true;
  auto stream = stub_->Step(context_.get());
  for (uint64_t tag = 0; tag < 5; ++tag) ASSERT_TRUE(stream->Write(Message(session, tag)));
  v1::StepResponse response;
  for (int64_t tag = 0; tag < 5; ++tag) {
    ASSERT_TRUE(engine_->WaitForHeld(1));
    EXPECT_EQ(engine_->held(), 1u);
    engine_->Answer(0);
    ASSERT_TRUE(stream->Read(&response));
    EXPECT_EQ(response.tag(), static_cast<uint64_t>(tag));
    EXPECT_EQ(response.result().length_tokens(), tag + 1);
  }
  ASSERT_TRUE(stream->WritesDone());
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(Locked([](auto& s) { return s.max_running; }), 1u);
}

TEST_F(StepStreamTest, BadMessagesAreAnsweredAndTheStreamGoesOn) {
  const uint64_t session = OpenSession();
  auto stream = stub_->Step(context_.get());
  v1::StepRequest bad = Message(session, 1);
  bad.set_forced_token_id(257);
  ASSERT_TRUE(stream->Write(bad));
  ASSERT_TRUE(stream->Write(Message(0, 2)));
  ASSERT_TRUE(stream->Write(Message(999, 3)));
  ASSERT_TRUE(stream->Write(Message(session, 4)));
  ASSERT_TRUE(stream->WritesDone());
  v1::StepResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.error().code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(response.error().message(), "forced_token_id: expected a token id in 0..256, got 257");
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.error().code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(response.error().message(), ::testing::HasSubstr("session_id"));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.error().code(), grpc::StatusCode::NOT_FOUND);
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.tag(), 4u);
  EXPECT_EQ(response.result().length_tokens(), 1);
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(StepStreamTest, AViolationIsInBandAndNamed) {
  const uint64_t session = OpenSession(), other = OpenSession();
  strings_->poisoned[session] =
      Latch{kPresentCapacity | kPosition, kPresentCapacity, -1, 0, 3, 9, 8};
  auto stream = stub_->Step(context_.get());
  ASSERT_TRUE(stream->Write(Message(session, 1)));
  ASSERT_TRUE(stream->Write(Message(other, 2)));
  ASSERT_TRUE(stream->WritesDone());
  v1::StepResponse response;
  ASSERT_TRUE(stream->Read(&response));
  ASSERT_TRUE(response.has_violation());
  EXPECT_EQ(response.violation().mask(), 48u);
  EXPECT_THAT(response.violation().invariants(),
              ::testing::ElementsAre(v1::INVARIANT_PRESENT_CAPACITY, v1::INVARIANT_POSITION));
  EXPECT_EQ(response.violation().value(), 9);
  EXPECT_EQ(response.violation().limit(), 8);
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_TRUE(response.has_result());
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(StepStreamTest, StopsReadingWhenTooManyArePending) {
  const uint64_t session = OpenSession();
  strings_->hold = true;
  auto stream = stub_->Step(context_.get());
  constexpr int64_t kCount = StepStream::kMaxPending * 3;
  std::thread writer([&] {
    for (int64_t i = 0; i < kCount; ++i) stream->Write(Message(session, i));
    stream->WritesDone();
  });
  ASSERT_TRUE(engine_->WaitForHeld(1));
  {
    std::lock_guard<std::mutex> lock(strings_->mutex);
    strings_->hold = false;
  }
  engine_->Answer(0);
  v1::StepResponse response;
  int64_t got = 0;
  for (; stream->Read(&response); ++got) ASSERT_EQ(response.tag(), static_cast<uint64_t>(got));
  writer.join();
  EXPECT_EQ(got, kCount);
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(StepStreamTest, CancelReachesTheEngineAndWaitingStepsNeverRun) {
  const uint64_t session = OpenSession();
  strings_->hold = true;
  auto stream = stub_->Step(context_.get());
  for (uint64_t tag = 0; tag < 3; ++tag) ASSERT_TRUE(stream->Write(Message(session, tag)));
  ASSERT_TRUE(engine_->WaitForHeld(1));
  context_->TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return Locked([](auto& s) { return s.cancels.size(); }) == 1; }));
  EXPECT_EQ(engine_->held(), 0u);
  EXPECT_EQ(engine_->GetSession(session)->length_tokens, 0);
}

TEST_F(StepStreamTest, DeadlineEndsTheStreamAndCancelsItsStep) {
  const uint64_t session = OpenSession();
  strings_->hold = true;
  auto context = Context(absl::Milliseconds(200));
  auto stream = stub_->Step(context.get());
  ASSERT_TRUE(stream->Write(Message(session, 1)));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(Eventually([&] { return Locked([](auto& s) { return s.cancels.size(); }) == 1; }));
}

TEST_F(StepStreamTest, ADrainLetsARunningStepFinishThenEndsTheStream) {
  const uint64_t session = OpenSession();
  strings_->hold = true;
  auto stream = stub_->Step(context_.get());
  auto idle_context = Context();
  auto idle = stub_->Step(idle_context.get());
  ASSERT_TRUE(idle->Write(Message(0, 1)));
  v1::StepResponse response;
  ASSERT_TRUE(idle->Read(&response));  // the stream is known to the server
  ASSERT_TRUE(stream->Write(Message(session, 7)));
  ASSERT_TRUE(engine_->WaitForHeld(1));
  std::thread stop([&] { server_->Stop(absl::Now() + kTimeout); });
  EXPECT_FALSE(idle->Read(&response)) << "a stream with nothing to do ends at once";
  const grpc::Status idle_end = idle->Finish();
  EXPECT_EQ(idle_end.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_FALSE(idle_end.error_details().empty()) << "RetryInfo";
  engine_->Answer(0);
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.tag(), 7u);
  EXPECT_EQ(response.result().length_tokens(), 1);
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  stop.join();
}

TEST_F(StepStreamTest, ManyStreamsComeAndGoAtOnce) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([this, t] {
      const uint64_t session = OpenSession();
      for (int round = 0; round < 10; ++round) {
        auto context = Context();
        auto stream = stub_->Step(context.get());
        for (int i = 0; i < 20; ++i) stream->Write(Message(session, i));
        if ((round + t) % 3 == 0) context->TryCancel();
        stream->WritesDone();
        v1::StepResponse response;
        while (stream->Read(&response)) {
        }
        stream->Finish();
      }
    });
  }
  absl::SleepFor(absl::Milliseconds(50));
  for (std::thread& thread : threads) thread.join();
  EXPECT_NE(OpenSession(), 0u) << "the server still serves";
}

}  // namespace
}  // namespace latchd
