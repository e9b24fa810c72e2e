#include "server/generate_stream.h"

#include <thread>

#include "tests/server/server_fixture.h"

namespace latchd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class GenerateStreamTest : public ServerTest {
 protected:
  struct Outcome {
    std::string text;
    std::vector<int32_t> tokens;
    std::optional<v1::GenerateResponse::Finish> finish;
    grpc::Status status;
  };

  Outcome Run(const v1::GenerateRequest& request, absl::Duration timeout = kTimeout) {
    auto context = Context(timeout);
    auto stream = stub_->Generate(context.get(), request);
    Outcome out;
    for (v1::GenerateResponse response; stream->Read(&response);) {
      if (response.has_token()) {
        out.text += response.token().text();
        out.tokens.push_back(response.token().next().token_id());
      } else {
        out.text += response.finish().text();
        out.finish = response.finish();
      }
    }
    out.status = stream->Finish();
    return out;
  }

  static v1::GenerateRequest Prompt(const std::string& text, int32_t max_tokens) {
    v1::GenerateRequest request;
    request.set_text(text);
    request.set_max_tokens(max_tokens);
    return request;
  }

  std::vector<SessionId> Closed() {
    return Locked([](auto& s) { return s.closed; });
  }
};

TEST_F(GenerateStreamTest, StreamsTokensThenFinishAndClosesItsOwnSession) {
  const Outcome out = Run(Prompt("hi", 4));
  ASSERT_TRUE(out.status.ok()) << out.status.error_message();
  EXPECT_EQ(out.text, "xxxx!");
  EXPECT_THAT(out.tokens, ElementsAre('b', 'c', 'd', 'e'));
  ASSERT_TRUE(out.finish);
  EXPECT_EQ(out.finish->reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(out.finish->usage().generated_tokens(), 4);
  EXPECT_EQ(out.finish->usage().prompt_tokens(), 3) << "BOS and two bytes";
  EXPECT_THAT(Closed(), ElementsAre(out.finish->session_id()));
  EXPECT_EQ(Locked([](auto& s) { return s.opened.at(0).capacity_tokens; }), 7);
  EXPECT_EQ(Locked([](auto& s) { return s.generates.at(0).sampling->seed; }), out.finish->seed());
}

TEST_F(GenerateStreamTest, OnASessionKeepsItAndAddsNoBosInTheMiddle) {
  const uint64_t session = OpenSession();
  v1::GenerateRequest request = Prompt("hi", 1);
  request.set_session_id(session);
  ASSERT_TRUE(Run(request).status.ok());
  ASSERT_TRUE(engine_->Truncate(session, 5).ok());  // the puppet's way of making it not empty
  ASSERT_TRUE(Run(request).status.ok());
  request.set_add_special_tokens(true);
  ASSERT_TRUE(Run(request).status.ok());
  const auto generates = Locked([](auto& s) { return s.generates; });
  EXPECT_THAT(generates.at(0).prompt, ElementsAre(256, 'h', 'i'));
  EXPECT_THAT(generates.at(1).prompt, ElementsAre('h', 'i'));
  EXPECT_THAT(generates.at(2).prompt, ElementsAre(256, 'h', 'i'));
  EXPECT_FALSE(generates.at(0).sampling) << "unset sampling keeps the session's";
  EXPECT_TRUE(Closed().empty());
}

TEST_F(GenerateStreamTest, RefusesBeforeOpeningASession) {
  v1::GenerateRequest request = Prompt("hi", -1);
  const Outcome out = Run(request);
  EXPECT_EQ(out.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(out.status.error_message(), HasSubstr("max_tokens"));
  EXPECT_TRUE(Locked([](auto& s) { return s.opened.empty(); }));
}

TEST_F(GenerateStreamTest, ReportsAFullPoolWithRetryInfo) {
  strings_->open_error = absl::ResourceExhaustedError("needs 7 tokens, 3 are free");
  const Outcome out = Run(Prompt("hi", 4));
  EXPECT_EQ(out.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(out.status.error_message(), HasSubstr("3 are free"));
  EXPECT_THAT(out.status.error_details(), HasSubstr("RetryInfo"));
}

TEST_F(GenerateStreamTest, AViolationEndsInBand) {
  const uint64_t session = OpenSession();
  strings_->poisoned[session] = Latch{kNonFinite, kNonFinite, 2, 0, 1, 0, 0};
  v1::GenerateRequest request = Prompt("hi", 4);
  request.set_session_id(session);
  const Outcome out = Run(request);
  ASSERT_TRUE(out.status.ok());
  EXPECT_EQ(out.finish->reason(), v1::FINISH_REASON_VIOLATION);
  EXPECT_THAT(out.finish->violation().invariants(), ElementsAre(v1::INVARIANT_NON_FINITE));
}

TEST_F(GenerateStreamTest, AnEngineErrorBecomesTheStatus) {
  v1::GenerateRequest request = Prompt("hi", 4);
  request.set_session_id(77);
  request.mutable_sampling()->set_temperature(0);
  request.set_add_special_tokens(false);
  const Outcome out = Run(request);
  EXPECT_EQ(out.status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_FALSE(out.finish);
}

TEST_F(GenerateStreamTest, CancelMidwayReachesTheEngineAndClosesItsOwnSession) {
  strings_->hold = true;
  strings_->tokens_allowed = 3;
  auto context = Context();
  auto stream = stub_->Generate(context.get(), Prompt("hi", 100));
  v1::GenerateResponse response;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(stream->Read(&response));
  context->TryCancel();
  context->TryCancel();  // twice is once
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return Closed().size() == 1; }));
  EXPECT_EQ(Locked([](auto& s) { return s.cancels.size(); }), 1u);
}

TEST_F(GenerateStreamTest, DeadlinePassesMidway) {
  strings_->hold = true;
  strings_->tokens_allowed = 2;
  const Outcome out = Run(Prompt("hi", 100), absl::Milliseconds(300));
  EXPECT_EQ(out.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(out.tokens.size(), 2u);
  EXPECT_TRUE(Eventually([&] { return Closed().size() == 1; }));
}

TEST_F(GenerateStreamTest, ASlowReaderLosesItsOwnGenerationOnly) {
  // Messages large enough to fill the transport's windows, so that the bound of the queue is what
  // gives.
  strings_->token_text = std::string(20000, 'y');
  auto context = Context();
  auto stream = stub_->Generate(context.get(), Prompt("hi", 100000));
  EXPECT_TRUE(Eventually([&] { return Closed().size() == 1; }))
      << "the generation ends although nobody reads";
  strings_->mutex.lock();
  strings_->token_text = "x";
  strings_->mutex.unlock();
  EXPECT_TRUE(Run(Prompt("other", 2)).status.ok());
  size_t read = 0;
  for (v1::GenerateResponse response; stream->Read(&response);) ++read;
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("behind"));
  EXPECT_LT(read, 99999u);
}

TEST_F(GenerateStreamTest, ADrainLetsItFinish) {
  strings_->hold = true;
  strings_->tokens_allowed = 1;
  auto context = Context();
  auto stream = stub_->Generate(context.get(), Prompt("hi", 3));
  v1::GenerateResponse response;
  ASSERT_TRUE(stream->Read(&response));
  std::thread stop([&] { server_->Stop(absl::Now() + kTimeout); });
  EXPECT_TRUE(Eventually([&] {
    v1::OpenSessionResponse opened;
    return stub_->OpenSession(Context().get(), v1::OpenSessionRequest(), &opened).error_code() ==
           grpc::StatusCode::UNAVAILABLE;
  })) << "new work is refused";
  EXPECT_EQ(Run(Prompt("late", 1)).status.error_code(), grpc::StatusCode::UNAVAILABLE);
  strings_->mutex.lock();
  strings_->hold = false;
  strings_->mutex.unlock();
  bool finished = false;
  while (stream->Read(&response)) finished |= response.has_finish();
  EXPECT_TRUE(finished);
  EXPECT_TRUE(stream->Finish().ok());
  stop.join();
}

TEST_F(GenerateStreamTest, ADrainCancelsWhatOverstaysItsDeadline) {
  strings_->hold = true;
  strings_->tokens_allowed = 1;
  auto context = Context();
  auto stream = stub_->Generate(context.get(), Prompt("hi", 3));
  v1::GenerateResponse response;
  ASSERT_TRUE(stream->Read(&response));
  const absl::Time start = absl::Now();
  server_->Stop(start + absl::Milliseconds(100));
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Closed().size(), 1u);
}

}  // namespace
}  // namespace latchd
