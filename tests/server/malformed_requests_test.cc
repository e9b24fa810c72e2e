#include <grpcpp/generic/generic_stub.h>

#include "tests/server/server_fixture.h"

namespace latchd {
namespace {

using ::testing::HasSubstr;

class MalformedRequestsTest : public ServerTest {
 protected:
  // What the server answers to these bytes, sent as the one request of `method`.
  grpc::Status Send(const std::string& method, const std::string& bytes) {
    const grpc::Slice slice(bytes);
    grpc::ByteBuffer request(&slice, 1), reply;
    grpc::GenericStub stub(channel_);
    grpc::CompletionQueue queue;
    auto context = Context();
    auto call = stub.PrepareUnaryCall(context.get(), "/latchd.v1." + method, request, &queue);
    call->StartCall();
    grpc::Status status;
    call->Finish(&reply, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    return status;
  }
};

TEST_F(MalformedRequestsTest, AreAnInvalidArgumentThatSaysSo) {
  const std::string not_utf8 = "\x0a\x02\xff\xfe";         // field 1 of Tokenize: text
  const std::string prompt_not_utf8 = "\x12\x02\xff\xfe";  // field 2 of Generate and Prefill: text
  const std::string junk(20, '\xff');
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"DecodeService/Tokenize", not_utf8},
      {"DecodeService/Tokenize", junk},
      {"DecodeService/Prefill", prompt_not_utf8},
      {"DecodeService/Generate", prompt_not_utf8},
  };
  for (const auto& [method, bytes] : cases) {
    const grpc::Status status = Send(method, bytes);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
    EXPECT_THAT(status.error_message(), HasSubstr("UTF-8, got bytes that do not parse")) << method;
  }
}

TEST_F(MalformedRequestsTest, OtherAnswersAreLeftAlone) {
  EXPECT_EQ(Send("DecodeService/Nothing", "").error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_TRUE(Send("DecodeService/GetModel", "").ok());
  // UNIMPLEMENTED of our own, which has a message.
  const grpc::Status status = Send("DecodeService/InjectFault", "");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(status.error_message(), HasSubstr("--enable-fault-injection"));
}

}  // namespace
}  // namespace latchd
