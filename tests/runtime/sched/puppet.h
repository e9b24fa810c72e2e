#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/sched/step_loop.h"
#include "tests/runtime/sched/answers.h"
#include "tests/runtime/sched/tiny_runner.h"
#include "tests/support/reference_random.h"

namespace latchd::testing {

// A step loop over a tiny random model on the CPU. It has no thread and moves only when the test
// says so; `now` is its clock.
class Puppet : public TinyRunner {
 public:
  explicit Puppet(const PuppetOptions& options = {}) : TinyRunner(options) {
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
  Metrics metrics;
  std::unique_ptr<StepLoop> loop;

 private:
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
