#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <functional>
#include <thread>

#include "tests/e2e/daemon.h"

namespace latchd::e2e {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

using LifecycleE2e = DaemonTest;

// Runs latchd until it exits by itself; returns its exit code.
int RunToExit(const std::string& folder, const std::vector<std::string>& arguments,
              std::string& err) {
  std::vector<std::string> command = {LATCHD_BINARY};
  command.insert(command.end(), arguments.begin(), arguments.end());
  Process process(command, folder + "/failing");
  const auto code = process.Wait(absl::Seconds(20));
  err = process.err();
  return code.value_or(-1);
}

// The complaint itself, after whatever was logged before it.
void ExpectOneComplaint(const std::string& err, const std::string& about) {
  const size_t at = err.find("latchd: ");
  ASSERT_NE(at, std::string::npos) << err;
  const std::string complaint = err.substr(at);
  EXPECT_THAT(complaint, HasSubstr(about));
  EXPECT_EQ(std::count(complaint.begin(), complaint.end(), '\n'), 1) << complaint;
}

TEST_F(LifecycleE2e, HealthReflectionAndHttp) {
  const auto health = RawCall(daemon().address(), "/grpc.health.v1.Health/Check", "");
  ASSERT_TRUE(health.ok()) << health.status();
  EXPECT_EQ(*health, std::string("\x08\x01")) << "SERVING";
  // ServerReflectionRequest{list_services: ""}
  const auto services =
      RawCall(daemon().address(), "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
              std::string("\x3a\x00", 2));
  ASSERT_TRUE(services.ok()) << services.status();
  EXPECT_THAT(*services, HasSubstr("latchd.v1.DecodeService"));
  EXPECT_THAT(HttpGet(daemon().http(), "/healthz"), HasSubstr(" 200 "));
  EXPECT_THAT(HttpGet(daemon().http(), "/readyz"), HasSubstr(" 200 "));
  const std::string metrics = HttpGet(daemon().http(), "/metrics");
  EXPECT_THAT(metrics, HasSubstr("\nlatchd_"));
  EXPECT_THAT(metrics, HasSubstr("# TYPE latchd_"));
  EXPECT_THAT(HttpGet(daemon().http(), "/nothing"), HasSubstr(" 404 "));
}

TEST_F(LifecycleE2e, StatusCountsCapturesAndReplays) {
  const client::Session session = OpenWithPrompt(RandomPrompt(4));
  const auto before = client().GetStatus();
  ASSERT_TRUE(before.ok());
  EXPECT_GE(before->graph_captures(), 1);
  ASSERT_GE(before->graphs_size(), 1);
  EXPECT_FALSE(before->graphs(0).signature().empty());
  StepTokens(session.id(), 10);
  const auto after = client().GetStatus();
  ASSERT_TRUE(after.ok());
  int64_t replays = 0;
  for (const auto& graph : after->graphs()) replays += graph.replays();
  for (const auto& graph : before->graphs()) replays -= graph.replays();
  EXPECT_EQ(replays, 10) << "each step is one replay";
  EXPECT_EQ(after->graph_captures(), before->graph_captures()) << "nothing is captured later";
  EXPECT_EQ(after->sessions(), 1);
  EXPECT_TRUE(after->fault_injection());
  EXPECT_LT(after->kv_tokens_free(), after->kv_tokens_total());
}

TEST_F(LifecycleE2e, DrainsOnSigterm) {
  v1::GenerateRequest request;
  const std::vector<int32_t> prompt = RandomPrompt(4);
  request.mutable_tokens()->mutable_ids()->Add(prompt.begin(), prompt.end());
  request.set_max_tokens(100);
  request.set_ignore_eos(true);
  int tokens = 0;
  // The signal comes while the generation runs; running work finishes.
  const auto finish = client().Generate(request, [&](const v1::GenerateResponse::Token&) {
    if (tokens++ == 0) daemon().process().Signal(SIGTERM);
    return true;
  });
  EXPECT_TRUE(finish.ok()) << finish.status();
  EXPECT_EQ(tokens, 100);
  EXPECT_EQ(daemon().process().Wait(absl::Seconds(20)).value_or(-1), 0);
  EXPECT_FALSE(client::Client::Connect(daemon().address()).ok());
}

TEST_F(LifecycleE2e, PortInUseIsExitCode2) {
  std::string err;
  EXPECT_EQ(RunToExit(path(""),
                      {"--model", path("model"), "--device", "cpu", "--listen", daemon().address(),
                       "--http", ""},
                      err),
            2);
  ExpectOneComplaint(err, daemon().address());
  EXPECT_EQ(RunToExit(path(""),
                      {"--model", path("model"), "--device", "cpu", "--listen", "127.0.0.1:0",
                       "--http", daemon().http()},
                      err),
            2);
  ExpectOneComplaint(err, daemon().http());
  EXPECT_TRUE(client().GetStatus().ok()) << "the first daemon is not disturbed";
}

TEST(StartE2e, MissingModelIsExitCode2) {
  const testing::TempDir folder;
  std::string err;
  const std::vector<std::string> where = {"--device",    "cpu",    "--listen",
                                          "127.0.0.1:0", "--http", ""};
  std::vector<std::string> arguments = {"--model", folder.path("nowhere")};
  arguments.insert(arguments.end(), where.begin(), where.end());
  EXPECT_EQ(RunToExit(folder.path(), arguments, err), 2);
  ExpectOneComplaint(err, folder.path("nowhere"));
  EXPECT_EQ(RunToExit(folder.path(), where, err), 2);
  ExpectOneComplaint(err, "model");
  EXPECT_EQ(RunToExit(folder.path(), {"--no-such-flag"}, err), 2);
  ExpectOneComplaint(err, "no-such-flag");
}

using ErrorsE2e = DaemonTest;

TEST_F(ErrorsE2e, UnknownSessionIsNotFound) {
  for (const absl::Status& status :
       {client().GetSession(987654321).status(), client().ClearLatch(987654321).status(),
        client().Truncate(987654321, 0).status(), client().Reset(987654321).status(),
        client().OpenStepStream(987654321)->Step().status()}) {
    EXPECT_TRUE(absl::IsNotFound(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("987654321"));
  }
}

TEST_F(ErrorsE2e, InvalidArgumentsNameTheField) {
  const client::Session session = OpenWithPrompt(RandomPrompt(4));
  const auto prefill = [&](const std::function<void(v1::PrefillRequest&)>& set) {
    v1::PrefillRequest request;
    request.set_session_id(session.id());
    request.mutable_tokens()->add_ids(1);
    set(request);
    return client().Prefill(request).status();
  };
  const auto generate = [&](const std::function<void(v1::GenerateRequest&)>& set) {
    v1::GenerateRequest request;
    request.mutable_tokens()->add_ids(1);
    set(request);
    return client().Generate(request, nullptr).status();
  };
  using P = v1::PrefillRequest;
  using G = v1::GenerateRequest;
  const std::vector<std::pair<std::string, absl::Status>> cases = {
      {"tokens", prefill([](P& r) { r.mutable_tokens()->add_ids(kVocab); })},
      {"tokens", prefill([](P& r) { r.mutable_tokens()->add_ids(-1); })},
      {"top_logprobs", prefill([](P& r) { r.set_top_logprobs(21); })},
      {"temperature", generate([](G& r) { r.mutable_sampling()->set_temperature(-1.0f); })},
      {"top_p", generate([](G& r) { r.mutable_sampling()->set_top_p(1.5f); })},
      {"min_p", generate([](G& r) { r.mutable_sampling()->set_min_p(1.0f); })},
      {"logit_bias",
       generate([](G& r) { (*r.mutable_sampling()->mutable_logit_bias())[kVocab] = 1.0f; })},
      {"stop", generate([](G& r) { r.add_stop(""); })},
      {"stop_token_ids", generate([](G& r) { r.add_stop_token_ids(-5); })},
      {"max_tokens", generate([](G& r) { r.set_max_tokens(-1); })},
      {"length_tokens", client().Truncate(session.id(), 5).status()},
      {"forced_token_id", client().OpenStepStream(session.id())->StepForced(kVocab).status()},
  };
  for (const auto& [field, status] : cases) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << field << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(field));
    EXPECT_FALSE(client::GetViolation(status).has_value()) << field;
  }
  const auto after = session.Get();
  ASSERT_TRUE(after.ok());
  EXPECT_EQ(after->length_tokens(), 4) << "a request that fails changes nothing";
  EXPECT_EQ(after->state(), v1::Session::STATE_IDLE);
}

TEST_F(ErrorsE2e, StepWithoutANextTokenIsRefusedNotLatched) {
  const client::Session session = Open();
  const absl::Status status = client().OpenStepStream(session.id())->Step().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_FALSE(client::GetViolation(status).has_value());
  EXPECT_EQ(session.Get()->state(), v1::Session::STATE_IDLE);
}

TEST_F(ErrorsE2e, KvMemoryIsReservedAndRefusedAtOnce) {
  std::vector<client::Session> sessions;
  absl::Status refusal;
  for (int i = 0; i < 64 && refusal.ok(); ++i) {
    v1::OpenSessionRequest request;
    request.set_capacity_tokens(kContextTokens);
    auto session = client().OpenSession(request);
    refusal = session.status();
    if (session.ok()) sessions.push_back(*std::move(session));
  }
  EXPECT_TRUE(absl::IsResourceExhausted(refusal)) << refusal;
  ASSERT_FALSE(sessions.empty());
  EXPECT_TRUE(sessions.back().Close().ok());
  EXPECT_TRUE(client().OpenSession().ok()) << "what was closed is free again";
  // Every session that was opened can be filled.
  v1::GenerateRequest request;
  request.set_session_id(sessions.front().id());
  request.mutable_tokens()->add_ids(1);
  request.set_max_tokens(1000);
  request.set_ignore_eos(true);
  const auto finish = client().Generate(request, nullptr);
  ASSERT_TRUE(finish.ok()) << finish.status();
  EXPECT_EQ(finish->reason(), v1::FINISH_REASON_CAPACITY);
}

class NoFaultsE2e : public DaemonTest {
  std::vector<std::string> Flags() const override { return {"--enable-fault-injection=false"}; }
};

TEST_F(NoFaultsE2e, FaultInjectionIsOffUnlessAsked) {
  const client::Session session = OpenWithPrompt(RandomPrompt(4));
  v1::InjectFaultRequest request;
  request.set_session_id(session.id());
  request.set_position(-1);
  EXPECT_TRUE(absl::IsUnimplemented(client().InjectFault(request)));
  EXPECT_TRUE(absl::IsUnimplemented(client().GetKvDigest(session.id()).status()));
  EXPECT_EQ(StepTokens(session.id(), 2).size(), 2u);
}

}  // namespace
}  // namespace latchd::e2e
