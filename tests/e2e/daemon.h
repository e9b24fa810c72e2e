#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/client.h"
#include "tests/e2e/process.h"
#include "tests/e2e/tiny_model.h"
#include "tests/support/model_files.h"

namespace latchd::e2e {

// One latchd on free ports of 127.0.0.1.
class Daemon {
 public:
  // `folder`: for its logs. `flags` come after --device cpu, --listen and --http.
  Daemon(const std::string& folder, const std::string& model,
         const std::vector<std::string>& flags = {});

  // False, with the log in the test's output, when it does not serve within half a minute.
  bool WaitUntilServing();
  const std::string& address() const { return address_; }  // gRPC, HOST:PORT
  const std::string& http() const { return http_; }
  Process& process() { return process_; }

 private:
  Process process_;
  std::string address_, http_;
};

struct CtlResult {
  int code = -1;
  std::string out, err;
};

// A fresh model and a daemon with fault injection for each test. Tests do not depend on the
// weights; a failure prints the seed (LATCHD_E2E_SEED repeats it).
class DaemonTest : public ::testing::Test {
 protected:
  void SetUp() override;
  // Flags besides those of SetUp; called before the daemon starts.
  virtual std::vector<std::string> Flags() const { return {}; }
  // How client() connects.
  virtual std::optional<client::TlsOptions> Tls() const { return std::nullopt; }

  client::Client& client() { return *client_; }
  Daemon& daemon() { return *daemon_; }
  std::string path(const std::string& file) const { return folder_.path(file); }
  uint64_t seed() const { return seed_; }

  // Runs latchctl against the daemon.
  CtlResult Ctl(std::vector<std::string> arguments, const std::string& input = "");

  // A session of `capacity` tokens, and one with a prompt of random bytes already in it.
  client::Session Open(int64_t capacity = 64);
  client::Session OpenWithPrompt(const std::vector<int32_t>& prompt, int64_t capacity = 64);
  v1::PrefillResponse Prefill(uint64_t session_id, const std::vector<int32_t>& prompt,
                              bool want_logits = false);
  std::vector<int32_t> RandomPrompt(size_t tokens);
  // `count` tokens that the session's model chooses, by client-driven steps; the first is the
  // pending one.
  std::vector<int32_t> StepTokens(uint64_t session_id, int count);

 private:
  testing::TempDir folder_;
  uint64_t seed_ = 0;
  std::unique_ptr<Daemon> daemon_;
  std::unique_ptr<client::Client> client_;
  int ctl_runs_ = 0;
};

// The body of GET http://`address``path`, preceded by its status line; empty when nobody answers.
std::string HttpGet(const std::string& address, const std::string& path);

// One request and the first response of any method, as bytes: health and reflection need no
// generated code.
absl::StatusOr<std::string> RawCall(const std::string& address, const std::string& method,
                                    const std::string& request);

}  // namespace latchd::e2e
