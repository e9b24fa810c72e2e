#include "runtime/engine.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <future>
#include <thread>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/strings/str_cat.h"
#include "runtime/engine_parts.h"
#include "runtime/mutex.h"
#include "runtime/obs/metrics.h"

namespace latchd {
namespace {

// Runs everything that touches the device or a session on one thread: at start the loading of the
// model, then turns of the step loop between posted tasks.
class EngineImpl final : public Engine {
 public:
  EngineImpl(const EngineOptions& options, Metrics& metrics)
      : options_(options), metrics_(metrics) {}

  ~EngineImpl() override {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
    }
    wake_.NotifyOne();
    if (thread_.joinable()) thread_.join();
  }

  absl::Status Start(const Progress& progress) {
    absl::Status started;
    std::promise<void> ready;
    thread_ = std::thread([&] {
      absl::StatusOr<std::unique_ptr<EngineParts>> parts = EngineParts::Build(
          options_, metrics_, [this](Task task) { return PostWork(std::move(task)); }, progress);
      started = parts.status();
      if (parts.ok()) parts_ = *std::move(parts);
      const bool run = started.ok();
      ready.set_value();
      if (run) Run();
      parts_.reset();  // on the thread that made it: the device belongs to it
    });
    ready.get_future().wait();
    return started;
  }

  const ModelConfig& model() const override { return parts_->source->config(); }
  const Tokenizer* tokenizer() const override { return parts_->tokenizer.get(); }
  AttentionEngine* attention() override { return parts_->attention.get(); }

  EngineStatus status() const override {
    EngineStatus status;
    OnLoop([&] { status = parts_->Status(); });
    status.draining = draining_.load();
    return status;
  }

  absl::StatusOr<SessionInfo> OpenSession(const SessionOptions& options) override {
    if (draining_) return Draining();
    return Ask<absl::StatusOr<SessionInfo>>([&] { return loop().Open(options); });
  }
  absl::StatusOr<SessionInfo> GetSession(SessionId id) override {
    return Ask<absl::StatusOr<SessionInfo>>([&] { return loop().Get(id); });
  }
  std::vector<SessionInfo> ListSessions() override {
    return Ask<std::vector<SessionInfo>>([&] { return loop().List(); });
  }
  absl::StatusOr<SessionInfo> ClearLatch(SessionId id) override {
    return Ask<absl::StatusOr<SessionInfo>>([&] { return loop().ClearLatch(id); });
  }
  absl::StatusOr<SessionInfo> Truncate(SessionId id, int64_t length_tokens) override {
    return Ask<absl::StatusOr<SessionInfo>>([&] { return loop().Truncate(id, length_tokens); });
  }
  absl::StatusOr<SessionInfo> Reset(SessionId id) override { return Truncate(id, 0); }
  absl::Status CloseSession(SessionId id) override {
    return Ask<absl::Status>([&] { return loop().Close(id); });
  }

  RequestId Prefill(PrefillRequest in,
                    std::function<void(absl::StatusOr<PrefillResult>)> done) override {
    auto request = std::make_unique<Request>();
    request->session = in.session;
    request->prompt = std::move(in.tokens);
    request->append_next_token = in.append_next_token;
    request->top_logprobs = in.top_logprobs;
    request->want_logits = in.want_logits;
    request->deadline = in.deadline;
    request->prefill_done = std::move(done);
    return Submit(std::move(request));
  }

  RequestId Step(StepRequest in, std::function<void(absl::StatusOr<StepResult>)> done) override {
    auto request = std::make_unique<Request>();
    request->session = in.session;
    request->forced_token = in.forced_token;
    request->top_logprobs = in.top_logprobs;
    request->want_logits = in.want_logits;
    request->deadline = in.deadline;
    request->step_done = std::move(done);
    return Submit(std::move(request));
  }

  RequestId Generate(GenerateRequest in, std::function<void(const GeneratedToken&)> on_token,
                     std::function<void(const GenerateSummary&)> done) override {
    auto request = std::make_unique<Request>();
    request->session = in.session;
    request->prompt = std::move(in.prompt);
    request->append_next_token = in.append_next_token;
    request->top_logprobs = in.top_logprobs;
    request->deadline = in.deadline;
    request->generation = std::make_unique<Generation>();
    request->generation->request = std::move(in);
    request->generation->on_token = std::move(on_token);
    request->generation->done = std::move(done);
    return Submit(std::move(request));
  }

  void Cancel(RequestId id) override {
    Post([this, id] { loop().Cancel(id); });
  }

  absl::Status InjectFault(const FaultRequest& request) override {
    if (!options_.fault_injection) return NoFaultInjection();
    return Ask<absl::Status>([&] { return parts_->InjectFault(request); });
  }
  absl::StatusOr<std::string> KvDigest(SessionId id) override {
    if (!options_.fault_injection) return NoFaultInjection();
    return Ask<absl::StatusOr<std::string>>([&] { return loop().KvDigest(id); });
  }

  void Drain(absl::Time deadline) override {
    draining_ = true;
    {
      MutexLock lock(mutex_);
      while (pending_ > 0 && idle_.WaitUntil(mutex_, absl::ToChronoTime(deadline))) {
      }
      if (pending_ == 0) return;
    }
    OnLoop([&] { loop().CancelAll(); });
    MutexLock lock(mutex_);
    while (pending_ > 0) idle_.Wait(mutex_);
  }

 private:
  using Task = absl::AnyInvocable<void()>;

  StepLoop& loop() const { return *parts_->loop; }
  static absl::Status Draining() {
    return absl::UnavailableError("the daemon is draining: it takes no new work");
  }
  static absl::Status NoFaultInjection() {
    return absl::UnimplementedError(
        "fault injection is off: start the daemon with --enable-fault-injection");
  }

  bool Due() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !tasks_.empty(); }

  void Post(Task task) const {
    {
      MutexLock lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    wake_.NotifyOne();
  }
  // Work that a drain waits for. False: draining.
  bool PostWork(Task task) {
    {
      MutexLock lock(mutex_);
      if (draining_) return false;
      ++pending_;
      tasks_.push_back([this, task = std::move(task)]() mutable {
        task();
        MutexLock lock(mutex_);
        if (--pending_ == 0) idle_.NotifyAll();
      });
    }
    wake_.NotifyOne();
    return true;
  }
  void OnLoop(const std::function<void()>& task) const {
    std::promise<void> done;
    Post([&] {
      task();
      done.set_value();
    });
    done.get_future().wait();
  }
  template <typename T, typename F>
  T Ask(F&& question) const {
    std::optional<T> answer;
    OnLoop([&] { answer.emplace(question()); });
    return *std::move(answer);
  }

  // Counts the request as pending until its `done`, whatever path it ends on.
  RequestId Submit(std::unique_ptr<Request> request) {
    const RequestId id = next_request_id_.fetch_add(1);
    request->id = id;
    request->submitted = absl::Now();
    const auto counted = [this](auto done) {
      return [this, done = std::move(done)](auto&&... result) {
        done(std::forward<decltype(result)>(result)...);
        MutexLock lock(mutex_);
        if (--pending_ == 0) idle_.NotifyAll();
      };
    };
    if (request->prefill_done) request->prefill_done = counted(std::move(request->prefill_done));
    if (request->step_done) request->step_done = counted(std::move(request->step_done));
    if (request->generation)
      request->generation->done = counted(std::move(request->generation->done));

    MutexLock lock(mutex_);
    absl::Status refused;
    if (draining_) {
      refused = Draining();
    } else if (pending_ >= options_.max_queue) {
      refused = absl::ResourceExhaustedError(absl::StrCat(
          "the queue is full: ", pending_, " requests wait, --max-queue is ", options_.max_queue));
    }
    ++pending_;
    tasks_.push_back([this, refused, request = std::move(request)]() mutable {
      if (refused.ok()) return loop().Submit(std::move(request));
      loop().Refuse(std::move(request), refused);
    });
    wake_.NotifyOne();
    return id;
  }

  void Run() {
    while (true) {
      std::deque<Task> tasks;
      {
        MutexLock lock(mutex_);
        if (stopping_ && tasks_.empty()) break;
        tasks.swap(tasks_);
      }
      for (Task& task : tasks) task();
      if (loop().Turn()) continue;
      const auto due = absl::ToChronoTime(loop().NextDue());
      MutexLock lock(mutex_);
      while (!Due() && wake_.WaitUntil(mutex_, due)) {
      }
    }
    loop().CancelAll();
  }

  const EngineOptions options_;
  Metrics& metrics_;
  std::unique_ptr<EngineParts> parts_;  // made, used and destroyed on thread_
  std::thread thread_;
  std::atomic<bool> draining_ = false;
  std::atomic<RequestId> next_request_id_ = 1;
  mutable Mutex mutex_;
  mutable CondVar wake_;  // the loop's thread waits for tasks_ or stopping_
  CondVar idle_;          // Drain waits for pending_ == 0
  mutable std::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  int64_t pending_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options,
                                                       Metrics& metrics, const Progress& progress) {
  auto engine = std::make_unique<EngineImpl>(options, metrics);
  if (absl::Status status = engine->Start(progress); !status.ok()) return status;
  return engine;
}

}  // namespace latchd
