#include "server/server.h"

#include <grpcpp/generic/generic_stub.h>
#include <httplib.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/str_cat.h"
#include "server/startup.h"
#include "tests/server/server_fixture.h"

namespace latchd {
namespace {

using ::testing::HasSubstr;

class HttpTest : public ServerTest {
 protected:
  int HttpPort() const {
    return std::stoi(server_->http_address().substr(server_->http_address().rfind(':') + 1));
  }
  std::pair<int, std::string> Get(const std::string& path) {
    httplib::Client client("127.0.0.1", HttpPort());
    client.set_read_timeout(10);
    const auto result = client.Get(path.c_str());
    return result ? std::pair{result->status, result->body} : std::pair{0, std::string()};
  }
  // What grpc.health.v1.Health/Check answers: 1 SERVING, 2 NOT_SERVING, 0 otherwise. By hand: its
  // proto is not packaged.
  int Health(const std::string& service) {
    grpc::ByteBuffer reply;
    grpc::GenericStub stub(channel_);
    const std::string request =
        service.empty()
            ? ""
            : absl::StrCat("\x0a", std::string(1, static_cast<char>(service.size())), service);
    grpc::Slice slice(request);
    grpc::ByteBuffer buffer(&slice, 1);
    grpc::CompletionQueue queue;
    auto context = Context();
    auto call =
        stub.PrepareUnaryCall(context.get(), "/grpc.health.v1.Health/Check", buffer, &queue);
    call->StartCall();
    grpc::Status status;
    call->Finish(&reply, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    if (!status.ok()) return 0;
    std::vector<grpc::Slice> slices;
    if (!reply.Dump(&slices).ok() || slices.empty() || slices[0].size() < 2) return 0;
    return slices[0].begin()[1];
  }
};

TEST_F(HttpTest, ProbesAndMetricsOfAHealthyServer) {
  EXPECT_EQ(Get("/healthz"), (std::pair{200, std::string("{\"alive\":true,\"reason\":\"\"}\n")}));
  const auto [code, body] = Get("/readyz");
  EXPECT_EQ(code, 200);
  EXPECT_EQ(nlohmann::json::parse(body)["model"], "fake");
  OpenSession();
  const auto [metrics_code, metrics] = Get("/metrics");
  EXPECT_EQ(metrics_code, 200);
  EXPECT_THAT(metrics, HasSubstr("latchd_ready 1\n"));
  EXPECT_THAT(metrics, HasSubstr("latchd_rpcs_total{code=\"OK\",method=\"OpenSession\"} 1\n"));
  const auto [missing, hint] = Get("/nothing");
  EXPECT_EQ(missing, 404);
  EXPECT_THAT(hint, HasSubstr("/readyz"));
  EXPECT_EQ(Health(""), 1);
  EXPECT_EQ(Health("latchd.v1.DecodeService"), 1);
}

TEST_F(HttpTest, AStickyFaultFailsEveryProbe) {
  EXPECT_EQ(Health(""), 1);
  strings_->mutex.lock();
  strings_->fault = absl::InternalError("ECC");
  strings_->mutex.unlock();
  EXPECT_EQ(Get("/healthz").first, 503);
  const auto [code, body] = Get("/readyz");
  EXPECT_EQ(code, 503);
  EXPECT_THAT(body, HasSubstr("ECC"));
  EXPECT_TRUE(Eventually([&] { return Health("") == 2; }));
  EXPECT_EQ(Health("latchd.v1.DecodeService"), 2);
  EXPECT_FALSE(server_->fault().ok());
  EXPECT_THAT(Get("/metrics").second, HasSubstr("latchd_ready 0\n"));
}

TEST_F(HttpTest, PendingWorkWithoutAGoodStepIsNotReadyButAlive) {
  server_.reset();
  strings_ = std::make_shared<FakeEngine::Strings>();
  options_.stall_timeout = absl::Milliseconds(300);
  Start();
  const uint64_t session = OpenSession();
  absl::SleepFor(absl::Milliseconds(500));
  EXPECT_EQ(Get("/readyz").first, 200) << "idle is not stuck";
  strings_->hold = true;
  auto context = Context();
  auto stream = stub_->Step(context.get());
  v1::StepRequest request;
  request.set_session_id(session);
  stream->Write(request);
  ASSERT_TRUE(engine_->WaitForHeld(1));
  EXPECT_TRUE(Eventually([&] { return Get("/readyz").first == 503; }));
  EXPECT_THAT(Get("/readyz").second, HasSubstr("stalled"));
  EXPECT_EQ(Get("/healthz").first, 200);
  EXPECT_TRUE(Eventually([&] { return Health("") == 2; }));
  engine_->Answer(0);
  EXPECT_TRUE(Eventually([&] { return Get("/readyz").first == 200 && Health("") == 1; }))
      << "it recovers by itself";
  context->TryCancel();
}

TEST_F(HttpTest, ADrainIsSeenByProbesWhileWorkFinishes) {
  const uint64_t session = OpenSession();
  strings_->hold = true;
  auto context = Context();
  auto stream = stub_->Step(context.get());
  v1::StepRequest request;
  request.set_session_id(session);
  stream->Write(request);
  ASSERT_TRUE(engine_->WaitForHeld(1));
  std::thread stop([&] { server_->Stop(absl::Now() + kTimeout); });
  EXPECT_TRUE(Eventually([&] { return Get("/readyz").first == 503; }));
  EXPECT_THAT(Get("/readyz").second, HasSubstr("draining"));
  EXPECT_EQ(Get("/healthz").first, 200);
  EXPECT_TRUE(Eventually([&] { return Health("") == 2; }));
  v1::GetStatusResponse status;
  EXPECT_TRUE(stub_->GetStatus(Context().get(), {}, &status).ok());
  EXPECT_TRUE(status.draining());
  engine_->Answer(0);
  stop.join();
  server_->Stop(absl::Now());  // idempotent
}

TEST_F(HttpTest, SlowHttpClientsDoNotLockOutTheProbes) {
  // Connections that send nothing occupy the few threads only until their short timeout.
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([this] {
      httplib::Client client("127.0.0.1", HttpPort());
      client.set_keep_alive(true);
      client.Get("/healthz");
      absl::SleepFor(absl::Seconds(1));
    });
  }
  EXPECT_EQ(Get("/healthz").first, 200);
  for (std::thread& thread : threads) thread.join();
}

TEST_F(HttpTest, ConnectionsThatSayNothingDoNotDelayTheProbes) {
  std::vector<int> silent;
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(HttpPort()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (int i = 0; i < 24; ++i) {
    silent.push_back(socket(AF_INET, SOCK_STREAM, 0));
    ASSERT_EQ(connect(silent.back(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
              0);
  }
  // Before the first of them can have reached its timeout of 2 s.
  const absl::Time start = absl::Now();
  EXPECT_EQ(Get("/readyz").first, 200);
  EXPECT_LT(absl::Now() - start, absl::Milliseconds(1500));
  for (const int fd : silent) close(fd);
}

TEST_F(ServerTest, APortInUseIsAnErrorThatNamesItBeforeTheModelLoads) {
  bool loaded = false;
  const auto start = [&](const std::string& listen, const std::string& http) {
    Options options;
    options.listen = listen;
    options.http = http;
    return Server::Start(options,
                         [&](const EngineOptions&, Metrics&,
                             const Progress&) -> absl::StatusOr<std::unique_ptr<Engine>> {
                           loaded = true;
                           return std::make_unique<FakeEngine>(strings_);
                         },
                         {});
  };
  auto grpc = start(server_->grpc_address(), "");
  ASSERT_FALSE(grpc.ok());
  EXPECT_EQ(std::string(grpc.status().message()),
            absl::StrCat("--listen: cannot listen on ", server_->grpc_address(),
                         ": Address already in use"));
  auto http = start("127.0.0.1:0", server_->http_address());
  ASSERT_FALSE(http.ok());
  EXPECT_EQ(std::string(http.status().message()),
            absl::StrCat("--http: cannot listen on ", server_->http_address(),
                         ": Address already in use"));
  EXPECT_FALSE(loaded);
}

TEST_F(ServerTest, AFailedLoadLeavesNothingRunning) {
  Options options;
  options.listen = "127.0.0.1:0";
  options.http = "127.0.0.1:0";
  for (int i = 0; i < 3; ++i) {
    auto server = Server::Start(options,
                                [](const EngineOptions&, Metrics&,
                                   const Progress&) -> absl::StatusOr<std::unique_ptr<Engine>> {
                                  return absl::NotFoundError("no model");
                                },
                                {});
    EXPECT_EQ(server.status().code(), absl::StatusCode::kNotFound);
  }
}

TEST_F(ServerTest, HttpSaysLoadingUntilTheModelIsThere) {
  server_.reset();
  std::string seen;
  Options options;
  options.listen = "127.0.0.1:0";
  options.http = "127.0.0.1:28731";
  if (!CheckAddressFree(*ParseAddress(options.http), "http").ok()) GTEST_SKIP() << "port taken";
  auto server =
      Server::Start(options,
                    [&](const EngineOptions&, Metrics&,
                        const Progress&) -> absl::StatusOr<std::unique_ptr<Engine>> {
                      httplib::Client client("127.0.0.1", 28731);
                      const auto ready = client.Get("/readyz");
                      if (ready) seen = absl::StrCat(ready->status, " ", ready->body);
                      const auto alive = client.Get("/healthz");
                      if (alive) absl::StrAppend(&seen, alive->status);
                      return std::make_unique<FakeEngine>(std::make_shared<FakeEngine::Strings>());
                    },
                    {});
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT(seen, HasSubstr("503"));
  EXPECT_THAT(seen, HasSubstr("loading"));
  EXPECT_THAT(seen, ::testing::EndsWith("200"));
}

TEST_F(ServerTest, UnixSocketAndTlsErrors) {
  server_.reset();
  strings_ = std::make_shared<FakeEngine::Strings>();
  const auto create = [&](const EngineOptions&, Metrics&,
                          const Progress&) -> absl::StatusOr<std::unique_ptr<Engine>> {
    return std::make_unique<FakeEngine>(strings_);
  };
  Options options;
  options.http = "";
  options.listen = absl::StrCat("unix:", ::testing::TempDir(), "/latchd_", getpid(), ".sock");
  auto server = Server::Start(options, create, {});
  ASSERT_TRUE(server.ok()) << server.status();
  auto stub = v1::DecodeService::NewStub(
      grpc::CreateChannel((*server)->grpc_address(), grpc::InsecureChannelCredentials()));
  v1::GetModelResponse model;
  EXPECT_TRUE(stub->GetModel(Context().get(), {}, &model).ok());
  EXPECT_THAT(std::string(Server::Start(options, create, {}).status().message()),
              HasSubstr("Address already in use"));
  options.listen = "127.0.0.1:0";
  options.tls_cert = options.tls_key = "/nonexistent.pem";
  EXPECT_EQ(std::string(Server::Start(options, create, {}).status().message()),
            "--tls-cert: expected a readable PEM file, got '/nonexistent.pem'");
}

}  // namespace
}  // namespace latchd
