#include <atomic>
#include <cstdio>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "client/cli/command.h"
#include "client/cli/format.h"
#include "client/cli/json.h"
#include "client/cli/stats.h"

namespace latchd::cli {
namespace {

struct Options {
  int concurrency = 1;
  int requests = 16;
  int prompt_tokens = 64;
  int max_tokens = 64;
  int max_seconds = 120;
  uint64_t seed = 0;
  float temperature = 0.0f;
  bool client_steps = false;
};

struct Samples {
  std::vector<double> ttft_ms, itl_ms, request_ms, tokens_per_s;
  int64_t tokens = 0;
  int done = 0;
  std::map<std::string, int> errors;  // by code and message
  absl::Status first_error;
};

// One closed loop over all workers: each sends its next request when its last has ended.
class Bench {
 public:
  Bench(const Options& options, Context& context, const v1::GetModelResponse& model)
      : options_(options), context_(context), model_(model) {}

  Samples Run() {
    end_ = absl::Now() + absl::Seconds(options_.max_seconds);
    std::vector<std::thread> workers;
    for (int i = 0; i < options_.concurrency; ++i) workers.emplace_back([this] { Work(); });
    for (std::thread& worker : workers) worker.join();
    absl::MutexLock lock(&mutex_);
    return samples_;
  }

 private:
  void Work() {
    for (int i = next_++; i < options_.requests; i = next_++) {
      if (context_.interrupt.requested() || absl::Now() >= end_) return;
      std::vector<absl::Time> arrivals;  // of the tokens
      const absl::Time start = absl::Now();
      Record(start, arrivals, OneRequest(i, arrivals));
    }
  }

  absl::Status OneRequest(int index, std::vector<absl::Time>& arrivals) {
    v1::OpenSessionRequest open;
    // The last token is chosen but not appended, so this is one more than needed.
    open.set_capacity_tokens(options_.prompt_tokens + options_.max_tokens);
    open.set_owner("latchctl bench");
    open.mutable_sampling()->set_temperature(options_.temperature);
    open.mutable_sampling()->set_seed(options_.seed + index);
    auto session = context_.client.OpenSession(open);
    if (!session.ok()) return session.status();
    return options_.client_steps ? ClientSteps(index, session->id(), arrivals)
                                 : Generate(index, session->id(), arrivals);
  }

  absl::Status Generate(int index, uint64_t session_id, std::vector<absl::Time>& arrivals) {
    v1::GenerateRequest request;
    request.set_session_id(session_id);
    FillPrompt(index, *request.mutable_tokens());
    request.set_max_tokens(options_.max_tokens);
    request.set_ignore_eos(true);
    const auto finish = context_.client.Generate(
        request,
        [&](const v1::GenerateResponse::Token&) {
          arrivals.push_back(absl::Now());
          return true;
        },
        Limits());
    if (!finish.ok()) return finish.status();
    return finish->has_violation() ? client::ViolationError(finish->violation()) : absl::OkStatus();
  }

  absl::Status ClientSteps(int index, uint64_t session_id, std::vector<absl::Time>& arrivals) {
    v1::PrefillRequest request;
    request.set_session_id(session_id);
    FillPrompt(index, *request.mutable_tokens());
    const auto prefill = context_.client.Prefill(request, Limits());
    if (!prefill.ok()) return prefill.status();
    arrivals.push_back(absl::Now());
    auto stream = context_.client.OpenStepStream(session_id, &context_.interrupt.cancellation());
    while (static_cast<int>(arrivals.size()) < options_.max_tokens) {
      if (absl::Now() >= end_) return absl::DeadlineExceededError("--max-seconds reached");
      const auto result = stream->Step();
      if (!result.ok()) return result.status();
      arrivals.push_back(absl::Now());
    }
    return stream->Finish();
  }

  // Random ids, the same for the same seed and request whatever the concurrency.
  void FillPrompt(int index, v1::TokenIds& ids) const {
    std::seed_seq sequence{options_.seed, static_cast<uint64_t>(index)};
    std::mt19937_64 random(sequence);
    std::uniform_int_distribution<int32_t> any(0, static_cast<int32_t>(model_.vocab() - 1));
    for (int i = 0; i < options_.prompt_tokens; ++i) ids.add_ids(any(random));
  }

  client::CallOptions Limits() const {
    return {end_ - absl::Now(), &context_.interrupt.cancellation()};
  }

  void Record(absl::Time start, const std::vector<absl::Time>& arrivals,
              const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    if (!status.ok()) {
      if (samples_.first_error.ok()) samples_.first_error = status;
      ++samples_.errors[std::string(absl::StatusCodeToString(status.code()))];
      return;
    }
    ++samples_.done;
    samples_.tokens += static_cast<int64_t>(arrivals.size());
    if (arrivals.empty()) return;
    samples_.ttft_ms.push_back(absl::ToDoubleMilliseconds(arrivals.front() - start));
    samples_.request_ms.push_back(absl::ToDoubleMilliseconds(arrivals.back() - start));
    for (size_t i = 1; i < arrivals.size(); ++i) {
      samples_.itl_ms.push_back(absl::ToDoubleMilliseconds(arrivals[i] - arrivals[i - 1]));
    }
    const double decode_s = absl::ToDoubleSeconds(arrivals.back() - arrivals.front());
    if (decode_s > 0.0) samples_.tokens_per_s.push_back((arrivals.size() - 1) / decode_s);
  }

  const Options& options_;
  Context& context_;
  const v1::GetModelResponse& model_;
  absl::Time end_;
  std::atomic<int> next_ = 0;
  absl::Mutex mutex_;
  Samples samples_ ABSL_GUARDED_BY(mutex_);
};

Json ToJson(const Summary& s) {
  return {{"mean", s.mean}, {"p50", s.p50}, {"p90", s.p90}, {"p99", s.p99}, {"max", s.max}};
}

void PrintResult(const Options& options, const Samples& samples, double wall_s, bool json) {
  const std::vector<std::pair<std::string, Summary>> rows = {
      {"ttft_ms", Summarize(samples.ttft_ms)},
      {"itl_ms", Summarize(samples.itl_ms)},
      {"request_ms", Summarize(samples.request_ms)},
      {"tokens_per_s", Summarize(samples.tokens_per_s)}};
  if (json) {
    Json object = {{"mode", options.client_steps ? "client_steps" : "generate"},
                   {"concurrency", options.concurrency},
                   {"prompt_tokens", options.prompt_tokens},
                   {"max_tokens", options.max_tokens},
                   {"requests", samples.done},
                   {"errors", samples.errors},
                   {"wall_s", wall_s},
                   {"generated_tokens", samples.tokens},
                   {"throughput_tokens_per_s", samples.tokens / wall_s},
                   {"requests_per_s", samples.done / wall_s}};
    for (const auto& [name, summary] : rows) object[name] = ToJson(summary);
    PrintJson(object);
    return;
  }
  Table table({"", "mean", "p50", "p90", "p99", "max"});
  for (const auto& [name, s] : rows) {
    std::vector<std::string> cells = {name};
    for (const double v : {s.mean, s.p50, s.p90, s.p99, s.max}) {
      cells.push_back(absl::StrFormat("%.2f", v));
    }
    table.AddRow(cells);
  }
  std::fputs(table.ToString().c_str(), stdout);
  std::fputs(absl::StrFormat("%d requests, %s tokens in %.2f s: %.1f tok/s, %.2f requests/s\n",
                             samples.done, FormatCount(samples.tokens), wall_s,
                             samples.tokens / wall_s, samples.done / wall_s)
                 .c_str(),
             stdout);
  for (const auto& [code, count] : samples.errors) {
    std::fprintf(stdout, "%d failed: %s\n", count, code.c_str());
  }
}

int Run(const Options& options, Context& context) {
  const auto model = context.client.GetModel();
  if (!model.ok()) return ReportError(model.status());
  const absl::Time start = absl::Now();
  const Samples samples = Bench(options, context, *model).Run();
  PrintResult(options, samples, absl::ToDoubleSeconds(absl::Now() - start), context.json);
  if (context.interrupt.requested()) return kInterrupted;
  return samples.first_error.ok() ? static_cast<int>(kOk) : ReportError(samples.first_error);
}

}  // namespace

void AddBench(CLI::App& app, Command& selected) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("bench", "Measure TTFT, ITL and throughput");
  command->footer(
      "A closed loop of random prompts; it ends after --requests or --max-seconds.\n"
      "Examples:\n"
      "  latchctl bench --requests 32 --max-tokens 128\n"
      "  latchctl bench --concurrency 8 --requests 64 --json\n"
      "  latchctl bench --client-steps       (each token is asked for over one step stream)");
  command->add_option("-c,--concurrency", options->concurrency, "Requests at a time")
      ->capture_default_str()
      ->check(CLI::Range(1, 256));
  command->add_option("-r,--requests", options->requests, "Requests in all")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000));
  command->add_option("--prompt-tokens", options->prompt_tokens, "Random tokens of each prompt")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  command->add_option("-n,--max-tokens", options->max_tokens, "Tokens generated by each request")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  command->add_option("--max-seconds", options->max_seconds, "Time after which it ends")
      ->capture_default_str()
      ->check(CLI::Range(1, 3600));
  command->add_option("--seed", options->seed, "Of prompts and sampling")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--temperature", options->temperature, "Of the sampling")
      ->capture_default_str();
  command->add_flag("--client-steps", options->client_steps, "Step over the stream, not Generate");
  command->callback([options, &selected] {
    selected = [options](Context& context) { return Run(*options, context); };
  });
}

}  // namespace latchd::cli
