#include "server/attention_service.h"

#include <random>
#include <thread>

#include "google/rpc/status.pb.h"
#include "server/attention_stream.h"
#include "tests/server/attention_messages.h"
#include "tests/server/server_fixture.h"

namespace latchd {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class AttentionServiceTest : public ServerTest {
 protected:
  using Stream = grpc::ClientReaderWriter<v1::AttentionRequest, v1::AttentionResponse>;

  void SetUp() override {
    options_.max_message_bytes = 4 << 20;
    strings_->attention = std::make_shared<FakeAttention>();
    fake_ = strings_->attention.get();
    Start();
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(8 << 20);
    attention_ = v1::AttentionService::NewStub(grpc::CreateCustomChannel(
        server_->grpc_address(), grpc::InsecureChannelCredentials(), arguments));
  }

  uint64_t Open(const v1::OpenAttentionSessionRequest& request = OpenMessage()) {
    v1::AttentionSession session;
    const grpc::Status status = attention_->OpenSession(Context().get(), request, &session);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return session.session_id();
  }

  // A step whose query holds `value`, which the puppet sends back.
  static v1::AttentionRequest StepMessage(uint64_t session, uint64_t tag, float value = 0) {
    v1::AttentionRequest message = CallMessage(session, 1, 10);
    *message.mutable_query() = F32Tensor({2, 1, 32}, value);
    message.set_tag(tag);
    return message;
  }
  template <typename F>
  auto WithFake(F f) {
    std::lock_guard<std::mutex> lock(fake_->mutex);
    return f(*fake_);
  }
  void Hold(bool hold) {
    WithFake([&](FakeAttention& f) { f.hold = hold; });
  }
  std::string ExportAll(uint64_t session, grpc::Status* status, size_t* largest) {
    auto context = Context();
    v1::ExportAttentionRequest request;
    request.set_session_id(session);
    auto reader = attention_->Export(context.get(), request);
    v1::ExportAttentionResponse response;
    std::string file;
    while (reader->Read(&response)) {
      file += response.chunk();
      *largest = std::max(*largest, response.chunk().size());
    }
    *status = reader->Finish();
    return file;
  }

  FakeAttention* fake_ = nullptr;
  std::unique_ptr<v1::AttentionService::Stub> attention_;
  std::unique_ptr<grpc::ClientContext> context_ = Context();
};

TEST_F(AttentionServiceTest, SessionsFromOpenToClose) {
  v1::GetCapabilitiesResponse can;
  ASSERT_TRUE(attention_->GetCapabilities(Context().get(), {}, &can).ok());
  EXPECT_THAT(can.dtypes(),
              ElementsAre(v1::ELEMENT_TYPE_F32, v1::ELEMENT_TYPE_F16, v1::ELEMENT_TYPE_BF16));
  EXPECT_EQ(can.max_message_bytes(), 4 << 20);
  EXPECT_EQ(can.max_sessions(), 64);
  EXPECT_THAT(can.supported(), Contains("head_sink"));
  EXPECT_THAT(can.unsupported(), Contains("qk_output"));

  v1::OpenAttentionSessionRequest open = OpenMessage();
  open.set_owner("me");
  v1::AttentionSession session;
  ASSERT_TRUE(attention_->OpenSession(Context().get(), open, &session).ok());
  EXPECT_EQ(session.signature(), "attention puppet");
  EXPECT_EQ(session.state(), "idle");
  EXPECT_EQ(session.batch(), 2);
  EXPECT_EQ(session.layers(), 3);
  EXPECT_EQ(session.capacity_tokens(), 32);
  EXPECT_EQ(session.lengths_size(), 6);
  EXPECT_EQ(session.owner(), "me");
  const uint64_t id = session.session_id();

  v1::TruncateAttentionRequest truncate;
  truncate.set_session_id(id);
  truncate.set_length(4);
  ASSERT_TRUE(attention_->Truncate(Context().get(), truncate, &session).ok());
  EXPECT_THAT(session.lengths(), ElementsAre(4, 4, 4, 4, 4, 4));
  truncate.set_length(-1);
  grpc::Status status = attention_->Truncate(Context().get(), truncate, &session);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("length: expected 0.."));

  v1::ForkAttentionRequest fork;
  fork.set_session_id(id);
  v1::AttentionSession copy;
  ASSERT_TRUE(attention_->Fork(Context().get(), fork, &copy).ok());
  EXPECT_NE(copy.session_id(), id);
  fork.set_session_id(999);
  EXPECT_EQ(attention_->Fork(Context().get(), fork, &copy).error_code(),
            grpc::StatusCode::NOT_FOUND);
  v1::ListAttentionSessionsResponse list;
  ASSERT_TRUE(attention_->ListSessions(Context().get(), {}, &list).ok());
  EXPECT_EQ(list.sessions_size(), 2);

  v1::CloseAttentionSessionRequest close;
  close.set_session_id(id);
  v1::CloseAttentionSessionResponse closed;
  EXPECT_TRUE(attention_->CloseSession(Context().get(), close, &closed).ok());
  v1::GetAttentionSessionRequest get;
  get.set_session_id(id);
  EXPECT_EQ(attention_->GetSession(Context().get(), get, &session).error_code(),
            grpc::StatusCode::NOT_FOUND);
  get.set_session_id(0);
  EXPECT_EQ(attention_->GetSession(Context().get(), get, &session).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(AttentionServiceTest, ARefusedOpenNeverReachesTheEngine) {
  v1::OpenAttentionSessionRequest open = OpenMessage();
  open.mutable_attributes()->set_kv_num_heads(3);
  v1::AttentionSession session;
  const grpc::Status status = attention_->OpenSession(Context().get(), open, &session);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(),
            "attributes.kv_num_heads: expected a divisor of num_heads 4, got 3");
  EXPECT_TRUE(fake_->ListAttention().empty());
}

TEST_F(AttentionServiceTest, AnOpenWhoseClientIsGoneLeavesNoSession) {
  auto context = Context();
  WithFake([&](FakeAttention& f) {
    f.opening = [&] {
      context->TryCancel();
      absl::SleepFor(absl::Milliseconds(300));  // the cancel reaches the server
    };
  });
  v1::AttentionSession session;
  const grpc::Status status = attention_->OpenSession(context.get(), OpenMessage(), &session);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return WithFake([](auto& f) { return f.closed.size(); }) == 1; }));
}

TEST_F(AttentionServiceTest, PrefillReturnsItsTensors) {
  const uint64_t id = Open();
  v1::AttentionRequest request = CallMessage(id, 5, 10);
  *request.mutable_query() = F32Tensor({2, 5, 32}, 0.25f);
  request.set_layer(1);
  request.set_tag(77);
  request.set_want_present(true);
  v1::AttentionResponse response;
  ASSERT_TRUE(attention_->Prefill(Context().get(), request, &response).ok());
  EXPECT_EQ(response.session_id(), id);
  EXPECT_EQ(response.tag(), 77u);
  EXPECT_EQ(response.output().dtype(), v1::ELEMENT_TYPE_F32);
  EXPECT_THAT(response.output().shape(), ElementsAre(2, 5, 32));
  EXPECT_EQ(response.output().data(), request.query().data());
  EXPECT_THAT(response.present_key().shape(), ElementsAre(2, 2, 32, 8));
  EXPECT_TRUE(response.has_present_value());
  EXPECT_EQ(response.variants().metadata(), "separate");
  EXPECT_EQ(response.variants().attention(), "flash");
  EXPECT_FALSE(response.variants().captured());
  EXPECT_EQ(response.timings().device_us(), 5);
  const AttentionCall call = WithFake([](auto& f) { return f.calls.back(); });
  EXPECT_EQ(call.layer, 1);
  EXPECT_THAT(call.seqlens_k, ElementsAre(9, 9));
  EXPECT_LT(call.deadline, absl::Now() + 2 * kTimeout);

  request.set_layer(3);
  const grpc::Status refused = attention_->Prefill(Context().get(), request, &response);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused.error_message(), "layer: expected 0..2, got 3");
}

TEST_F(AttentionServiceTest, AViolatedPrefillCarriesTheDetail) {
  const uint64_t id = Open();
  const Latch latch{kPastCapacity, kPastCapacity, 2, 1, 3, 40, 32};
  WithFake([&](auto& f) { f.poisoned[id] = Violation{latch, DescribeLatch(latch)}; });
  v1::AttentionResponse response;
  const grpc::Status status =
      attention_->Prefill(Context().get(), CallMessage(id, 5, 10), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  google::rpc::Status rich;
  ASSERT_TRUE(rich.ParseFromString(status.error_details()));
  v1::InvariantViolation violation;
  ASSERT_TRUE(rich.details(0).UnpackTo(&violation));
  EXPECT_EQ(violation.layer(), 2);
  EXPECT_EQ(violation.row(), 1);
  v1::GetAttentionSessionRequest get;
  get.set_session_id(id);
  v1::AttentionSession session;
  ASSERT_TRUE(attention_->GetSession(Context().get(), get, &session).ok());
  EXPECT_EQ(session.state(), "poisoned");
  EXPECT_EQ(session.violation().mask(), static_cast<uint32_t>(kPastCapacity));
  v1::ClearAttentionLatchRequest clear;
  clear.set_session_id(id);
  ASSERT_TRUE(attention_->ClearLatch(Context().get(), clear, &session).ok());
  EXPECT_EQ(session.state(), "idle");
}

TEST_F(AttentionServiceTest, StepAnswersInOrderThoughSessionsFinishOutOfOrder) {
  const uint64_t a = Open(), b = Open();
  Hold(true);
  auto stream = attention_->Step(context_.get());
  ASSERT_TRUE(stream->Write(StepMessage(a, 1, 0.5f)));
  ASSERT_TRUE(stream->Write(StepMessage(b, 2, 1.5f)));
  ASSERT_TRUE(stream->Write(StepMessage(a, 3, 2.5f)));
  ASSERT_TRUE(fake_->WaitForHeld(2));
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_EQ(fake_->held(), 2u) << "the second of session a waits for the first";
  fake_->Answer(1);
  Hold(false);
  fake_->Answer(0);
  ASSERT_TRUE(stream->WritesDone());
  v1::AttentionResponse response;
  for (const auto& [session, tag, value] :
       {std::tuple{a, 1u, 0.5f}, {b, 2u, 1.5f}, {a, 3u, 2.5f}}) {
    ASSERT_TRUE(stream->Read(&response));
    EXPECT_EQ(response.session_id(), session);
    EXPECT_EQ(response.tag(), tag);
    EXPECT_EQ(response.output().data(), F32Tensor({2, 1, 32}, value).data());
    EXPECT_THAT(response.output().shape(), ElementsAre(2, 1, 32));
    EXPECT_TRUE(response.variants().captured());
  }
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(AttentionServiceTest, RefusalsAndViolationsAreInBand) {
  const uint64_t good = Open(), bad = Open();
  const Latch latch{kPresentCapacity, kPresentCapacity, 0, 1, 3, 33, 32};
  WithFake([&](auto& f) { f.poisoned[bad] = Violation{latch, DescribeLatch(latch)}; });
  auto stream = attention_->Step(context_.get());
  v1::AttentionRequest two = CallMessage(good, 2, 10);
  two.set_tag(1);
  ASSERT_TRUE(stream->Write(two));
  ASSERT_TRUE(stream->Write(StepMessage(999, 2)));
  ASSERT_TRUE(stream->Write(StepMessage(bad, 3)));
  ASSERT_TRUE(stream->Write(StepMessage(good, 4)));
  ASSERT_TRUE(stream->WritesDone());
  v1::AttentionResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.tag(), 1u);
  EXPECT_EQ(response.error().code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(response.error().message(), "query.shape: expected [2, 1, 32], got [2, 2, 32]");
  EXPECT_FALSE(response.has_output());
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.error().code(), grpc::StatusCode::NOT_FOUND);
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.tag(), 3u);
  EXPECT_FALSE(response.has_error());
  EXPECT_THAT(response.violation().invariants(), ElementsAre(v1::INVARIANT_PRESENT_CAPACITY));
  EXPECT_EQ(response.violation().row(), 1);
  EXPECT_TRUE(response.has_output()) << "of the rows that are good";
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.tag(), 4u);
  EXPECT_FALSE(response.has_violation());
  EXPECT_TRUE(response.has_output());
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(AttentionServiceTest, ACancelledStreamRunsNothingMore) {
  const uint64_t id = Open();
  Hold(true);
  auto stream = attention_->Step(context_.get());
  for (uint64_t tag = 0; tag < 4; ++tag) ASSERT_TRUE(stream->Write(StepMessage(id, tag)));
  ASSERT_TRUE(fake_->WaitForHeld(1));
  context_->TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  absl::SleepFor(absl::Milliseconds(100));  // the cancel reaches the server
  fake_->Answer(0);
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_EQ(WithFake([](auto& f) { return f.calls.size(); }), 1u);
}

TEST_F(AttentionServiceTest, ADrainLetsARunningStepFinish) {
  const uint64_t id = Open();
  Hold(true);
  auto stream = attention_->Step(context_.get());
  ASSERT_TRUE(stream->Write(StepMessage(id, 7, 3.0f)));
  ASSERT_TRUE(fake_->WaitForHeld(1));
  std::thread stop([&] { server_->Stop(absl::Now() + kTimeout); });
  v1::AttentionSession session;
  EXPECT_TRUE(Eventually([&] {
    return attention_->OpenSession(Context().get(), OpenMessage(), &session).error_code() ==
           grpc::StatusCode::UNAVAILABLE;
  }));
  v1::AttentionResponse response;
  EXPECT_EQ(attention_->Prefill(Context().get(), CallMessage(id, 5, 10), &response).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  auto import_context = Context();
  auto import = attention_->Import(import_context.get(), &session);
  EXPECT_EQ(import->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  fake_->Answer(0);
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.output().data(), F32Tensor({2, 1, 32}, 3.0f).data());
  EXPECT_FALSE(stream->Read(&response));
  const grpc::Status end = stream->Finish();
  EXPECT_EQ(end.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_FALSE(end.error_details().empty()) << "RetryInfo";
  stop.join();
}

TEST_F(AttentionServiceTest, LargeMessagesPassAndTooLargeOnesAreRefused) {
  v1::OpenAttentionSessionRequest open = OpenMessage();
  open.set_capacity_tokens(20000);
  const uint64_t id = Open(open);
  v1::AttentionResponse response;
  const v1::AttentionRequest large = CallMessage(id, 7500, 7500);  // 3.84e6 bytes
  ASSERT_TRUE(attention_->Prefill(Context().get(), large, &response).ok());
  EXPECT_EQ(response.output().data().size(), large.query().data().size());
  EXPECT_EQ(
      attention_->Prefill(Context().get(), CallMessage(id, 9000, 9000), &response).error_code(),
      grpc::StatusCode::RESOURCE_EXHAUSTED);
  v1::AttentionRequest present = CallMessage(id, 5, 10);
  present.set_want_present(true);
  const grpc::Status status = attention_->Prefill(Context().get(), present, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("want_present"));
}

TEST_F(AttentionServiceTest, ManyBigStepsStayBoundedAndInOrder) {
  v1::OpenAttentionSessionRequest open = OpenMessage();
  open.set_batch(1000);
  open.mutable_attributes()->set_head_size(64);
  const uint64_t id = Open(open);
  Hold(true);
  auto stream = attention_->Step(context_.get());
  constexpr uint64_t kCount = 60;  // of 2 MB each
  std::thread writer([&] {
    v1::AttentionRequest message;
    message.set_session_id(id);
    *message.mutable_key() = F32Tensor({1000, 1, 128});
    *message.mutable_value() = F32Tensor({1000, 1, 128});
    *message.mutable_seqlens_k() = I32Tensor({1000}, std::vector<int32_t>(1000, 9));
    for (uint64_t tag = 0; tag < kCount; ++tag) {
      *message.mutable_query() = F32Tensor({1000, 1, 256}, static_cast<float>(tag));
      message.set_tag(tag);
      stream->Write(message);
    }
    stream->WritesDone();
  });
  // One read in the engine, the rest read ahead until the bytes are too many.
  const uint64_t most = AttentionStepPolicy::kMaxPendingBytes / 2048000 + 1;
  EXPECT_TRUE(Eventually([&] { return WithFake([](auto& f) { return f.lookups; }) == most; }));
  absl::SleepFor(absl::Milliseconds(200));
  EXPECT_EQ(WithFake([](auto& f) { return f.lookups; }), most) << "of " << kCount;
  Hold(false);
  fake_->Answer(0);
  v1::AttentionResponse response;
  uint64_t got = 0;
  for (; stream->Read(&response); ++got) {
    ASSERT_EQ(response.tag(), got);
    float last = 0;
    ASSERT_EQ(response.output().data().size(), 1024000u) << response.error().message();
    std::memcpy(&last, response.output().data().data() + 1023996, 4);
    ASSERT_EQ(last, static_cast<float>(got));
  }
  writer.join();
  EXPECT_EQ(got, kCount);
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(AttentionServiceTest, ExportIsChunkedAndWhole) {
  const uint64_t id = Open();
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  std::string file(3 * (1 << 20) + 12345, '\0');
  for (char& c : file) c = static_cast<char>(random());
  WithFake([&](auto& f) { f.file = file; });
  grpc::Status status;
  size_t largest = 0;
  EXPECT_TRUE(ExportAll(id, &status, &largest) == file);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(largest, size_t{1} << 20);
  EXPECT_EQ(ExportAll(999, &status, &largest), "");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(ExportAll(0, &status, &largest), "");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(AttentionServiceTest, ASlowOrVanishedExportReaderHoldsNothingUp) {
  const uint64_t id = Open();
  WithFake([&](auto& f) { f.file = std::string(16 << 20, 'x'); });
  {
    v1::ExportAttentionRequest request;
    request.set_session_id(id);
    auto reader = attention_->Export(context_.get(), request);
    v1::ExportAttentionResponse response;
    ASSERT_TRUE(reader->Read(&response));
    Open();  // served meanwhile
    context_->TryCancel();
    while (reader->Read(&response)) {
    }
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_NE(Open(), 0u);
}

TEST_F(AttentionServiceTest, ImportJoinsChunksAndIsBounded) {
  const uint64_t id = Open();
  const auto send = [&](const std::vector<v1::ImportAttentionRequest>& messages) {
    auto context = Context();
    v1::AttentionSession session;
    auto writer = attention_->Import(context.get(), &session);
    for (const auto& message : messages) {
      if (!writer->Write(message)) break;
    }
    writer->WritesDone();
    return writer->Finish();
  };
  const auto chunk = [](uint64_t session, std::string data) {
    v1::ImportAttentionRequest message;
    message.set_session_id(session);
    message.set_chunk(std::move(data));
    return message;
  };
  EXPECT_TRUE(send({chunk(id, "ab"), chunk(0, "cd"), chunk(id, "ef")}).ok());
  EXPECT_EQ(WithFake([](auto& f) { return f.imported; }), "abcdef");
  WithFake([](auto& f) { f.imported.clear(); });
  EXPECT_THAT(send({}).error_message(), HasSubstr("session_id: expected it in the first message"));
  EXPECT_THAT(send({chunk(0, "ab")}).error_message(), HasSubstr("session_id: expected the id"));
  EXPECT_EQ(send({chunk(999, "ab")}).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(send({chunk(id, "ab"), chunk(id + 1, "cd")}).error_message(),
              HasSubstr("after the first message, got"));
  const grpc::Status large =
      send(std::vector<v1::ImportAttentionRequest>(3, chunk(id, std::string(60000, 'x'))));
  EXPECT_EQ(large.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(large.error_message(), HasSubstr("chunk: expected a file of at most"));
  EXPECT_EQ(WithFake([](auto& f) { return f.imported; }), "") << "nothing refused got through";

  auto context = Context();
  v1::AttentionSession session;
  auto writer = attention_->Import(context.get(), &session);
  ASSERT_TRUE(writer->Write(chunk(id, "half")));
  context->TryCancel();
  EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(ServerTest, WithoutAnAttentionEngineTheServiceIsNotThere) {
  auto stub = v1::AttentionService::NewStub(channel_);
  v1::GetCapabilitiesResponse can;
  EXPECT_EQ(stub->GetCapabilities(Context().get(), {}, &can).error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
}

}  // namespace
}  // namespace latchd
