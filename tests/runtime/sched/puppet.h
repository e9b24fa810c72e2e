#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/device/cpu_device.h"
#include "runtime/sched/step_loop.h"
#include "tests/support/faulty_device.h"
#include "tests/support/model_files.h"
#include "tests/support/reference_random.h"
#include "tests/support/status_matchers.h"

namespace latchd::testing {

// What a Prefill or Step answered. `calls` must end at 1, whatever path the request takes.
template <typename T>
struct Answer {
  RequestId id = 0;
  int calls = 0;
  absl::StatusOr<T> result = absl::UnknownError("no answer yet");

  bool done() const { return calls > 0; }
  const T& operator*() const { return *result; }
  const T* operator->() const { return &*result; }
};

struct GenerateAnswer {
  RequestId id = 0;
  int calls = 0;
  std::vector<GeneratedToken> events;
  GenerateSummary summary;

  bool done() const { return calls > 0; }
  std::vector<int32_t> tokens() const {
    std::vector<int32_t> out;
    for (const GeneratedToken& event : events) out.push_back(event.sampled.token);
    return out;
  }
  std::string text() const {
    std::string out;
    for (const GeneratedToken& event : events) out += event.text;
    return out + summary.text;
  }
};

struct PuppetOptions {
  uint64_t seed = 1;  // of the weights
  int32_t max_rows = 4;
  int32_t prefill_chunk = 8;
  int32_t sessions = 8;
  int64_t max_capacity = 128;
  int32_t pool_pages = 16;
  const Tokenizer* tokenizer = nullptr;
};

// A step loop over a tiny random model on the CPU. It has no thread and moves only when the test
// says so; `now` is its clock, and `device` breaks on request.
class Puppet {
 public:
  explicit Puppet(const PuppetOptions& options = {})
      : config(TinyConfig("Qwen3ForCausalLM")), model(RandomModel(config, options.seed)) {
    weights =
        Take(TransformerWeights::Load(*model, device, DType::kF32, options.max_capacity, nullptr));
    kv = Take(KvCache::Create({.layers = static_cast<int32_t>(config.layers),
                               .kv_heads = static_cast<int32_t>(config.kv_heads),
                               .head_dim = static_cast<int32_t>(config.head_dim),
                               .dtype = DType::kF32,
                               .slots = options.sessions + 1,
                               .pool_pages = options.pool_pages + 1,
                               .max_capacity_tokens = options.max_capacity},
                              device));
    runner =
        Take(StepRunner::Create(*weights, *kv, device, options.max_rows, options.prefill_chunk));
    EXPECT_THAT(runner->CaptureAll(nullptr), IsOk());
    loop = std::make_unique<StepLoop>(StepLoopOptions{.vocab = config.vocab,
                                                      .default_ttl = absl::Minutes(10),
                                                      .first_session_id = 1000,
                                                      .now = [this] { return now; }},
                                      *runner, *kv, options.tokenizer, metrics);
  }

  SessionId Open(const SessionOptions& options = {}) {
    absl::StatusOr<SessionInfo> info = loop->Open(options);
    EXPECT_THAT(info, IsOk());
    return info.ok() ? info->id : 0;
  }
  SessionInfo Info(SessionId id) {
    absl::StatusOr<SessionInfo> info = loop->Get(id);
    EXPECT_THAT(info, IsOk());
    return info.value_or(SessionInfo{});
  }
  int64_t Length(SessionId id) { return Info(id).length_tokens; }
  std::string Digest(SessionId id) {
    absl::StatusOr<std::string> digest = loop->KvDigest(id);
    EXPECT_THAT(digest, IsOk());
    return digest.value_or("");
  }

  std::shared_ptr<Answer<PrefillResult>> Prefill(PrefillRequest in) {
    auto answer = std::make_shared<Answer<PrefillResult>>();
    std::unique_ptr<Request> request = Make(in.session, in.deadline, in.top_logprobs);
    request->prompt = std::move(in.tokens);
    request->append_next_token = in.append_next_token;
    request->want_logits = in.want_logits;
    request->prefill_done = Into(answer);
    return Submit(std::move(request), answer);
  }
  std::shared_ptr<Answer<StepResult>> Step(StepRequest in) {
    auto answer = std::make_shared<Answer<StepResult>>();
    std::unique_ptr<Request> request = Make(in.session, in.deadline, in.top_logprobs);
    request->forced_token = in.forced_token;
    request->want_logits = in.want_logits;
    request->step_done = Into(answer);
    return Submit(std::move(request), answer);
  }
  std::shared_ptr<GenerateAnswer> Generate(GenerateRequest in) {
    auto answer = std::make_shared<GenerateAnswer>();
    std::unique_ptr<Request> request = Make(in.session, in.deadline, in.top_logprobs);
    request->prompt = in.prompt;
    request->append_next_token = in.append_next_token;
    request->generation = std::make_unique<Generation>();
    request->generation->on_token = [answer](const GeneratedToken& token) {
      EXPECT_EQ(answer->calls, 0) << "a token after the end";
      answer->events.push_back(token);
    };
    request->generation->done = [answer](const GenerateSummary& summary) {
      ++answer->calls;
      answer->summary = summary;
    };
    request->generation->request = std::move(in);
    return Submit(std::move(request), answer);
  }

  void RunUntilIdle() {
    for (int turn = 0; turn < 2000; ++turn) {
      if (!loop->Turn()) return;
    }
    ADD_FAILURE() << "the loop does not come to rest";
  }
  void Turns(int count) {
    for (int i = 0; i < count; ++i) loop->Turn();
  }
  // A whole generation at once.
  std::shared_ptr<GenerateAnswer> RunGenerate(GenerateRequest request) {
    auto answer = Generate(std::move(request));
    RunUntilIdle();
    EXPECT_EQ(answer->calls, 1);
    return answer;
  }
  std::vector<int32_t> RandomPrompt(reference::Random& random, int32_t tokens) const {
    std::vector<int32_t> prompt(static_cast<size_t>(tokens));
    for (int32_t& t : prompt) t = random.Int(0, static_cast<int32_t>(config.vocab) - 1);
    return prompt;
  }
  int64_t replays() const { return runner->graphs().counters().hits; }

  absl::Time now = absl::UnixEpoch() + absl::Hours(1);
  ModelConfig config;
  FaultyDevice device{CreateCpuDevice(2)};
  // In this order: each uses those above it until its end.
  Metrics metrics;
  std::unique_ptr<ModelSource> model;
  std::unique_ptr<TransformerWeights> weights;
  std::unique_ptr<KvCache> kv;
  std::unique_ptr<StepRunner> runner;
  std::unique_ptr<StepLoop> loop;

 private:
  template <typename T>
  static T Take(absl::StatusOr<T> made) {
    EXPECT_THAT(made, IsOk());
    return *std::move(made);
  }
  template <typename T>
  static std::function<void(absl::StatusOr<T>)> Into(const std::shared_ptr<Answer<T>>& answer) {
    return [answer](absl::StatusOr<T> result) {
      ++answer->calls;
      answer->result = std::move(result);
    };
  }
  std::unique_ptr<Request> Make(SessionId session, absl::Time deadline, int32_t top_logprobs) {
    auto request = std::make_unique<Request>();
    request->id = ++last_request_;
    request->session = session;
    request->submitted = now;
    request->deadline = deadline;
    request->top_logprobs = top_logprobs;
    return request;
  }
  template <typename A>
  std::shared_ptr<A> Submit(std::unique_ptr<Request> request, std::shared_ptr<A> answer) {
    answer->id = request->id;
    loop->Submit(std::move(request));
    return answer;
  }

  RequestId last_request_ = 0;
};

}  // namespace latchd::testing
