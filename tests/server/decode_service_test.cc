#include "server/decode_service.h"

#include <thread>

#include "google/rpc/status.pb.h"
#include "tests/server/server_fixture.h"

namespace latchd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class DecodeServiceTest : public ServerTest {};

TEST_F(DecodeServiceTest, ModelAndStatus) {
  v1::GetModelResponse model;
  ASSERT_TRUE(stub_->GetModel(Context().get(), {}, &model).ok());
  EXPECT_EQ(model.name(), "fake");
  EXPECT_EQ(model.vocab(), 257);
  EXPECT_TRUE(model.has_tokenizer());
  EXPECT_FALSE(model.has_chat_template());
  EXPECT_THAT(model.eos_token_ids(), ElementsAre(256));
  EXPECT_FALSE(model.has_bos_token_id());
  v1::GetStatusResponse status;
  ASSERT_TRUE(stub_->GetStatus(Context().get(), {}, &status).ok());
  EXPECT_EQ(status.version(), LATCHD_VERSION);
  EXPECT_EQ(status.device(), "puppet");
  EXPECT_FALSE(status.has_last_good_step_ms_ago());
  EXPECT_FALSE(status.draining());
  EXPECT_FALSE(status.fault_injection());
}

TEST_F(DecodeServiceTest, SessionsFromOpenToClose) {
  v1::OpenSessionRequest open;
  open.set_capacity_tokens(20);
  open.set_owner("me");
  open.mutable_sampling()->set_seed(5);
  v1::OpenSessionResponse opened;
  ASSERT_TRUE(stub_->OpenSession(Context().get(), open, &opened).ok());
  const uint64_t id = opened.session().session_id();
  EXPECT_EQ(opened.session().capacity_tokens(), 20);
  EXPECT_EQ(opened.session().sampling().seed(), 5u);
  EXPECT_EQ(opened.session().state(), v1::Session::STATE_IDLE);

  v1::PrefillRequest prefill;
  prefill.set_session_id(id);
  prefill.set_text("hello");
  prefill.set_top_logprobs(2);
  prefill.set_want_logits(true);
  v1::PrefillResponse prefilled;
  ASSERT_TRUE(stub_->Prefill(Context().get(), prefill, &prefilled).ok());
  EXPECT_EQ(prefilled.prompt_tokens(), 6) << "with BOS, the session being empty";
  EXPECT_EQ(prefilled.length_tokens(), 6);
  EXPECT_EQ(prefilled.next().text(), "g");
  EXPECT_EQ(prefilled.next().top_size(), 2);
  EXPECT_EQ(prefilled.next().logits_size(), 257);
  ASSERT_TRUE(stub_->Prefill(Context().get(), prefill, &prefilled).ok());
  EXPECT_EQ(prefilled.prompt_tokens(), 5) << "no BOS in the middle";

  v1::TruncateRequest truncate;
  truncate.set_session_id(id);
  truncate.set_length_tokens(3);
  v1::Session session;
  ASSERT_TRUE(stub_->Truncate(Context().get(), truncate, &session).ok());
  EXPECT_EQ(session.length_tokens(), 3);
  v1::ResetRequest reset;
  reset.set_session_id(id);
  ASSERT_TRUE(stub_->Reset(Context().get(), reset, &session).ok());
  EXPECT_EQ(session.length_tokens(), 0);
  v1::ListSessionsResponse list;
  ASSERT_TRUE(stub_->ListSessions(Context().get(), {}, &list).ok());
  ASSERT_EQ(list.sessions_size(), 1);
  EXPECT_EQ(list.sessions(0).owner(), "me");
  v1::CloseSessionRequest close;
  close.set_session_id(id);
  v1::CloseSessionResponse closed;
  EXPECT_TRUE(stub_->CloseSession(Context().get(), close, &closed).ok());
  EXPECT_TRUE(stub_->CloseSession(Context().get(), close, &closed).ok()) << "idempotent";
  v1::GetSessionRequest get;
  get.set_session_id(id);
  EXPECT_EQ(stub_->GetSession(Context().get(), get, &session).error_code(),
            grpc::StatusCode::NOT_FOUND);
  get.set_session_id(0);
  EXPECT_EQ(stub_->GetSession(Context().get(), get, &session).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(DecodeServiceTest, APoisonedSessionSaysWhyUntilCleared) {
  const uint64_t id = OpenSession();
  strings_->poisoned[id] = Latch{kTokenRange, kTokenRange, -1, 0, 4, 300, 257};
  v1::PrefillRequest prefill;
  prefill.set_session_id(id);
  prefill.mutable_tokens()->add_ids(1);
  v1::PrefillResponse prefilled;
  const grpc::Status status = stub_->Prefill(Context().get(), prefill, &prefilled);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("TOKEN_RANGE"));
  google::rpc::Status rich;
  ASSERT_TRUE(rich.ParseFromString(status.error_details()));
  v1::InvariantViolation violation;
  ASSERT_EQ(rich.details_size(), 1);
  ASSERT_TRUE(rich.details(0).UnpackTo(&violation));
  EXPECT_THAT(violation.invariants(), ElementsAre(v1::INVARIANT_TOKEN_RANGE));

  v1::GetSessionRequest get;
  get.set_session_id(id);
  v1::Session session;
  ASSERT_TRUE(stub_->GetSession(Context().get(), get, &session).ok());
  EXPECT_EQ(session.state(), v1::Session::STATE_POISONED);
  EXPECT_EQ(session.violation().value(), 300);
  v1::ClearLatchRequest clear;
  clear.set_session_id(id);
  ASSERT_TRUE(stub_->ClearLatch(Context().get(), clear, &session).ok());
  EXPECT_FALSE(session.has_violation());
  EXPECT_TRUE(stub_->Prefill(Context().get(), prefill, &prefilled).ok());
}

TEST_F(DecodeServiceTest, CancellingAPrefillReachesTheEngineOnce) {
  const uint64_t id = OpenSession();
  strings_->hold = true;
  v1::PrefillRequest prefill;
  prefill.set_session_id(id);
  prefill.mutable_tokens()->add_ids(1);
  auto context = Context();
  std::thread cancel([&] {
    ASSERT_TRUE(engine_->WaitForHeld(1));
    context->TryCancel();
    context->TryCancel();
  });
  v1::PrefillResponse response;
  EXPECT_EQ(stub_->Prefill(context.get(), prefill, &response).error_code(),
            grpc::StatusCode::CANCELLED);
  cancel.join();
  EXPECT_TRUE(Eventually([&] { return Locked([](auto& s) { return s.cancels.size(); }) == 1; }));
  EXPECT_EQ(engine_->held(), 0u);
}

TEST_F(DecodeServiceTest, ManyWaitingPrefillsDoNotBlockStatus) {
  std::vector<std::thread> callers;
  std::vector<uint64_t> ids;
  for (int i = 0; i < 32; ++i) ids.push_back(OpenSession());
  strings_->hold = true;
  for (const uint64_t id : ids) {
    callers.emplace_back([this, id] {
      v1::PrefillRequest prefill;
      prefill.set_session_id(id);
      prefill.mutable_tokens()->add_ids(1);
      v1::PrefillResponse response;
      EXPECT_TRUE(stub_->Prefill(Context().get(), prefill, &response).ok());
    });
  }
  ASSERT_TRUE(engine_->WaitForHeld(ids.size()));
  v1::GetStatusResponse status;
  EXPECT_TRUE(stub_->GetStatus(Context().get(), {}, &status).ok());
  for (size_t i = ids.size(); i > 0; --i) engine_->Answer(i - 1);
  for (std::thread& caller : callers) caller.join();
}

TEST_F(DecodeServiceTest, TokenizeAndDetokenize) {
  v1::TokenizeRequest tokenize;
  tokenize.set_text("\xC3\xA4");
  tokenize.set_with_pieces(true);
  v1::TokenizeResponse tokens;
  ASSERT_TRUE(stub_->Tokenize(Context().get(), tokenize, &tokens).ok());
  EXPECT_THAT(tokens.token_ids(), ElementsAre(256, 0xC3, 0xA4));
  EXPECT_THAT(tokens.pieces(), ElementsAre("<eos>", "\xC3", "\xA4"));
  v1::DetokenizeRequest detokenize;
  for (const int32_t id : {256, 0xC3, 0xA4, 0xC3}) detokenize.add_token_ids(id);
  detokenize.set_skip_special_tokens(true);
  v1::DetokenizeResponse text;
  ASSERT_TRUE(stub_->Detokenize(Context().get(), detokenize, &text).ok());
  EXPECT_EQ(text.text(), "\xC3\xA4\xEF\xBF\xBD") << "half a character becomes U+FFFD";
  detokenize.add_token_ids(257);
  EXPECT_EQ(stub_->Detokenize(Context().get(), detokenize, &text).error_message(),
            "token_ids[4]: expected a token id in 0..256, got 257");
}

TEST_F(DecodeServiceTest, ATextResponseBeyondTheMessageLimitSaysWhatToDo) {
  server_.reset();
  options_.max_message_bytes = 65536;
  Start();
  v1::TokenizeRequest tokenize;
  tokenize.set_text(std::string(60000, 'a'));
  v1::TokenizeResponse tokens;
  EXPECT_TRUE(stub_->Tokenize(Context().get(), tokenize, &tokens).ok());
  tokenize.set_with_pieces(true);
  const grpc::Status status = stub_->Tokenize(Context().get(), tokenize, &tokens);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(),
              HasSubstr("response: expected at most 65536 bytes (--max-message-bytes), got "));
}

TEST_F(DecodeServiceTest, WithoutATokenizerTextIsRefusedByName) {
  strings_->with_tokenizer = false;
  v1::TokenizeResponse tokens;
  EXPECT_EQ(stub_->Tokenize(Context().get(), {}, &tokens).error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
  v1::PrefillRequest prefill;
  prefill.set_session_id(OpenSession());
  prefill.set_text("hi");
  v1::PrefillResponse response;
  EXPECT_THAT(stub_->Prefill(Context().get(), prefill, &response).error_message(),
              HasSubstr("no tokenizer"));
}

TEST_F(DecodeServiceTest, FaultInjectionIsOffUnlessAsked) {
  v1::InjectFaultRequest inject;
  inject.set_session_id(OpenSession());
  inject.set_page(-1);
  v1::InjectFaultResponse response;
  const grpc::Status status = stub_->InjectFault(Context().get(), inject, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(status.error_message(), HasSubstr("--enable-fault-injection"));
  v1::GetKvDigestResponse digest;
  EXPECT_EQ(stub_->GetKvDigest(Context().get(), {}, &digest).error_code(),
            grpc::StatusCode::UNIMPLEMENTED);

  server_.reset();
  strings_ = std::make_shared<FakeEngine::Strings>();
  options_.engine.fault_injection = true;
  Start();
  inject.set_session_id(OpenSession());
  EXPECT_TRUE(stub_->InjectFault(Context().get(), inject, &response).ok());
  v1::GetKvDigestRequest digest_request;
  digest_request.set_session_id(inject.session_id());
  ASSERT_TRUE(stub_->GetKvDigest(Context().get(), digest_request, &digest).ok());
  EXPECT_EQ(digest.sha256(), "digest1");
}

TEST_F(DecodeServiceTest, MessagesBeyondTheLimitAndBrokenUtf8AreRefusedByTheTransport) {
  server_.reset();
  options_.max_message_bytes = 65536;
  strings_ = std::make_shared<FakeEngine::Strings>();
  Start();
  v1::TokenizeRequest tokenize;
  tokenize.set_text(std::string(70000, 'a'));
  v1::TokenizeResponse tokens;
  EXPECT_EQ(stub_->Tokenize(Context().get(), tokenize, &tokens).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  tokenize.set_text("\xFF");
  EXPECT_FALSE(stub_->Tokenize(Context().get(), tokenize, &tokens).ok());
  tokenize.set_text("fine");
  EXPECT_TRUE(stub_->Tokenize(Context().get(), tokenize, &tokens).ok()) << "the server goes on";
}

}  // namespace
}  // namespace latchd
