#pragma once

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "latchd/v1/decode.grpc.pb.h"
#include "server/server.h"
#include "tests/server/fake_engine.h"

namespace latchd {

// A server on free loopback ports over a puppet engine, and a client of it. Every call has a
// deadline, so that a bug fails a test instead of hanging it.
class ServerTest : public ::testing::Test {
 protected:
  static constexpr absl::Duration kTimeout = absl::Seconds(20);

  void SetUp() override { Start(); }

  void Start() {
    options_.listen = "127.0.0.1:0";
    options_.http = "127.0.0.1:0";
    options_.engine.model_path = "fake";
    auto server = Server::Start(
        options_,
        [this](const EngineOptions&, Metrics&,
               const Progress&) -> absl::StatusOr<std::unique_ptr<Engine>> {
          auto engine = std::make_unique<FakeEngine>(strings_);
          engine_ = engine.get();
          return engine;
        },
        [](const std::string&, int64_t, int64_t) {});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = grpc::CreateChannel(server_->grpc_address(), grpc::InsecureChannelCredentials());
    stub_ = v1::DecodeService::NewStub(channel_);
  }

  static std::unique_ptr<grpc::ClientContext> Context(absl::Duration timeout = kTimeout) {
    auto context = std::make_unique<grpc::ClientContext>();
    context->set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    return context;
  }

  uint64_t OpenSession() {
    v1::OpenSessionResponse response;
    const grpc::Status status =
        stub_->OpenSession(Context().get(), v1::OpenSessionRequest(), &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.session().session_id();
  }

  // Whether `done` becomes true soon enough.
  template <typename F>
  static bool Eventually(F done) {
    const absl::Time end = absl::Now() + kTimeout;
    while (!done()) {
      if (absl::Now() > end) return false;
      absl::SleepFor(absl::Milliseconds(2));
    }
    return true;
  }

  template <typename F>
  auto Locked(F read) {
    std::lock_guard<std::mutex> lock(strings_->mutex);
    return read(*strings_);
  }

  Options options_;
  std::shared_ptr<FakeEngine::Strings> strings_ = std::make_shared<FakeEngine::Strings>();
  FakeEngine* engine_ = nullptr;  // owned by the server
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::DecodeService::Stub> stub_;
};

}  // namespace latchd
