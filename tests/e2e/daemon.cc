#include "tests/e2e/daemon.h"

#include <arpa/inet.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "absl/time/clock.h"

namespace latchd::e2e {
namespace {

std::vector<std::string> Arguments(const std::string& model,
                                   const std::vector<std::string>& flags) {
  std::vector<std::string> arguments = {
      LATCHD_BINARY, "--model",   model, "--device",     "cpu", "--listen", "127.0.0.1:0", "--http",
      "127.0.0.1:0", "--threads", "1",   "--log-format", "json"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  return arguments;
}

}  // namespace

Daemon::Daemon(const std::string& folder, const std::string& model,
               const std::vector<std::string>& flags)
    : process_(Arguments(model, flags), folder + "/latchd") {}

bool Daemon::WaitUntilServing() {
  const absl::Time end = absl::Now() + absl::Seconds(30);
  while (absl::Now() < end && !process_.Wait(absl::Milliseconds(10)).has_value()) {
    std::istringstream log(process_.err());
    for (std::string line; std::getline(log, line);) {
      const auto record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (!record.is_object() || !record.contains("grpc")) continue;
      address_ = record["grpc"];
      http_ = record["http"];
      return true;
    }
  }
  ADD_FAILURE() << "latchd does not serve:\n" << process_.err();
  return false;
}

void DaemonTest::SetUp() {
  const char* fixed = std::getenv("LATCHD_E2E_SEED");
  seed_ = fixed != nullptr ? std::strtoull(fixed, nullptr, 10) : std::random_device{}();
  RecordProperty("seed", std::to_string(seed_));
  WriteTinyModel(path("model"), seed_);
  std::vector<std::string> flags = {"--enable-fault-injection", "--kv-tokens", "4096"};
  for (const std::string& flag : Flags()) flags.push_back(flag);
  daemon_ = std::make_unique<Daemon>(path(""), path("model"), flags);
  ASSERT_TRUE(daemon_->WaitUntilServing());
  client::ClientOptions options;
  options.wait_for_server = true;
  options.tls = Tls();
  auto client = client::Client::Connect(daemon_->address(), options);
  ASSERT_TRUE(client.ok()) << client.status();
  client_ = *std::move(client);
}

CtlResult DaemonTest::Ctl(std::vector<std::string> arguments, const std::string& input) {
  arguments.insert(arguments.begin(), {LATCHCTL_BINARY, "--server", daemon_->address()});
  Process process(arguments, path("ctl" + std::to_string(ctl_runs_++)), input);
  const auto code = process.Wait(absl::Seconds(60));
  EXPECT_TRUE(code.has_value()) << "latchctl hangs";
  return {code.value_or(-1), process.out(), process.err()};
}

client::Session DaemonTest::Open(int64_t capacity) {
  v1::OpenSessionRequest request;
  request.set_capacity_tokens(capacity);
  auto session = client_->OpenSession(request);
  EXPECT_TRUE(session.ok()) << session.status();
  return session.ok() ? *std::move(session) : client::Session();
}

client::Session DaemonTest::OpenWithPrompt(const std::vector<int32_t>& prompt, int64_t capacity) {
  client::Session session = Open(capacity);
  Prefill(session.id(), prompt);
  return session;
}

v1::PrefillResponse DaemonTest::Prefill(uint64_t session_id, const std::vector<int32_t>& prompt,
                                        bool want_logits) {
  v1::PrefillRequest request;
  request.set_session_id(session_id);
  request.mutable_tokens()->mutable_ids()->Add(prompt.begin(), prompt.end());
  request.set_want_logits(want_logits);
  auto response = client_->Prefill(request);
  EXPECT_TRUE(response.ok()) << response.status();
  return response.ok() ? *response : v1::PrefillResponse();
}

std::vector<int32_t> DaemonTest::RandomPrompt(size_t tokens) {
  static std::mt19937_64 random(seed_ + 1);
  std::vector<int32_t> prompt(tokens);
  for (int32_t& id : prompt) id = static_cast<int32_t>(random() % 256);
  return prompt;
}

std::vector<int32_t> DaemonTest::StepTokens(uint64_t session_id, int count) {
  std::vector<int32_t> ids;
  const auto stream = client_->OpenStepStream(session_id);
  for (int i = 0; i < count; ++i) {
    const auto result = stream->Step();
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) break;
    ids.push_back(result->appended_token_id());
  }
  return ids;
}

std::string HttpGet(const std::string& address, const std::string& path) {
  const size_t colon = address.rfind(':');
  sockaddr_in peer = {};
  peer.sin_family = AF_INET;
  peer.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(colon + 1))));
  inet_pton(AF_INET, address.substr(0, colon).c_str(), &peer.sin_addr);
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  std::string answer;
  if (connect(fd, reinterpret_cast<sockaddr*>(&peer), sizeof(peer)) == 0) {
    const std::string request =
        "GET " + path + " HTTP/1.1\r\nHost: " + address + "\r\nConnection: close\r\n\r\n";
    (void)!write(fd, request.data(), request.size());
    char chunk[4096];
    for (ssize_t n; (n = read(fd, chunk, sizeof(chunk))) > 0;) answer.append(chunk, n);
  }
  close(fd);
  return answer;
}

absl::StatusOr<std::string> RawCall(const std::string& address, const std::string& method,
                                    const std::string& request) {
  grpc::GenericStub stub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(10)));
  grpc::CompletionQueue queue;
  const auto next = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  const auto call = stub.PrepareCall(&context, method, &queue);
  call->StartCall(nullptr);
  next();
  const grpc::Slice slice(request);
  call->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
  next();
  grpc::ByteBuffer response;
  call->Read(&response, nullptr);
  std::string bytes;
  if (next()) {
    grpc::Slice single;
    if (response.DumpToSingleSlice(&single).ok()) {
      bytes.assign(reinterpret_cast<const char*>(single.begin()), single.size());
    }
  }
  grpc::Status status;
  call->Finish(&status, nullptr);
  next();
  queue.Shutdown();
  if (!status.ok()) return client::FromGrpcStatus(status);
  return bytes;
}

}  // namespace latchd::e2e
