#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/engine.h"
#include "server/worker_pool.h"
#include "tests/server/fake_attention.h"

namespace latchd {

// One token a byte: id = byte value; 256 is EOS. So a token can be a part of a character.
class FakeTokenizer final : public Tokenizer {
 public:
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text,
                                              const EncodeOptions& options) const override;
  absl::StatusOr<std::string> Decode(const std::vector<int32_t>& ids,
                                     bool skip_special) const override;
  std::string TokenBytes(int32_t id) const override;
  bool IsSpecial(int32_t id) const override { return id == 256; }
  std::optional<int32_t> TokenToId(std::string_view) const override { return std::nullopt; }
  int32_t vocab_size() const override { return 257; }
  std::optional<int32_t> bos_token() const override { return 256; }
  std::vector<int32_t> eos_tokens() const override { return {256}; }
  const std::string& chat_template() const override { return template_; }

 private:
  std::string template_;
};

// A puppet at the engine's seam: answers come from a loop thread of its own, as the real engine's
// do, and only when the test lets them. The next token after length n is 'a' + n % 26. Test-only.
class FakeEngine final : public Engine {
 public:
  struct Strings {
    std::mutex mutex;
    std::condition_variable changed;
    bool hold = false;  // Prefill and Step wait for Answer; Generate pauses before each token
    int64_t tokens_allowed = 0;  // that Generate may emit while `hold`
    absl::Status fault;
    absl::Status open_error;  // what OpenSession answers
    absl::Time last_good_step = absl::UnixEpoch();
    std::map<SessionId, Latch> poisoned;  // Step, Prefill and Generate report it
    std::vector<RequestId> cancels;       // as they came
    std::vector<SessionId> closed;
    std::vector<GenerateRequest> generates;
    std::vector<SessionOptions> opened;
    size_t max_running = 0;  // most Steps in the engine at once
    bool with_tokenizer = true;
    std::string token_text = "x";              // text of each generated token
    std::shared_ptr<FakeAttention> attention;  // of attention(); set before the engine is made
  };

  // The test keeps `strings`: the server owns the engine.
  explicit FakeEngine(std::shared_ptr<Strings> strings);
  ~FakeEngine() override;

  // How many requests wait for Answer; Answer(i) completes the i-th of them, in the order they
  // came.
  size_t held();
  void Answer(size_t index);
  bool WaitForHeld(size_t count, absl::Duration timeout = absl::Seconds(10));

  const ModelConfig& model() const override { return model_; }
  const Tokenizer* tokenizer() const override;
  EngineStatus status() const override;
  AttentionEngine* attention() override { return strings_->attention.get(); }
  absl::StatusOr<SessionInfo> OpenSession(const SessionOptions& options) override;
  absl::StatusOr<SessionInfo> GetSession(SessionId id) override;
  std::vector<SessionInfo> ListSessions() override;
  absl::StatusOr<SessionInfo> ClearLatch(SessionId id) override;
  absl::StatusOr<SessionInfo> Truncate(SessionId id, int64_t length_tokens) override;
  absl::StatusOr<SessionInfo> Reset(SessionId id) override;
  absl::Status CloseSession(SessionId id) override;
  RequestId Prefill(PrefillRequest request,
                    std::function<void(absl::StatusOr<PrefillResult>)> done) override;
  RequestId Step(StepRequest request,
                 std::function<void(absl::StatusOr<StepResult>)> done) override;
  RequestId Generate(GenerateRequest request, std::function<void(const GeneratedToken&)> on_token,
                     std::function<void(const GenerateSummary&)> done) override;
  void Cancel(RequestId id) override;
  absl::Status InjectFault(const FaultRequest& request) override;
  absl::StatusOr<std::string> KvDigest(SessionId id) override;
  void Drain(absl::Time deadline) override;

 private:
  struct Work {
    RequestId id = 0;
    SessionId session = 0;
    bool is_step = false;
    bool cancelled = false;
    std::function<void(const absl::Status& refused)> answer;  // runs on the loop thread
  };
  struct Generation;

  RequestId Submit(std::shared_ptr<Work> work);
  void Complete(const std::shared_ptr<Work>& work);
  void Advance(std::shared_ptr<Generation> generation);
  absl::StatusOr<SessionInfo> Info(SessionId id);  // REQUIRES: strings_->mutex held
  bool Idle() const { return held_.empty() && generations_.empty() && running_.empty(); }

  const std::shared_ptr<Strings> strings_;
  ModelConfig model_;
  FakeTokenizer tokenizer_;
  std::map<SessionId, SessionInfo> sessions_;
  SessionId last_session_ = 0;
  RequestId last_request_ = 0;
  std::vector<std::shared_ptr<Work>> held_;
  std::map<RequestId, std::shared_ptr<Work>> running_;
  std::map<RequestId, std::shared_ptr<Generation>> generations_;
  bool draining_ = false;
  WorkerPool loop_{1, 1 << 20};
};

}  // namespace latchd
