#include "runtime/obs/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "kernels/api/invariants.h"

namespace latchd {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;

enum Id : size_t {
  kStepSeconds,
  kStepRows,
  kQueueSeconds,
  kTtft,
  kItl,
  kPrefillSeconds,
  kPrefillTokens,
  kGenerated,
  kGraphHits,
  kGraphMisses,
  kGraphCaptures,
  kGraphBytes,
  kViolations,
  kCancelled,
  kSessions,
  kKvFree,
  kKvTotal,
  kQueued,
  kRpcs,
  kRpcSeconds,
  kInfo,
  kMemory,
  kReady,
  kLastGoodStep,
};

constexpr MetricType C = MetricType::kCounter;
constexpr MetricType G = MetricType::kGauge;
constexpr MetricType H = MetricType::kHistogram;

// In the order of Id.
const std::vector<MetricInfo> kList = {
    {"latchd_step_seconds", H, "",
     "Time of one replayed decode step, from launch until its result was read"},
    {"latchd_step_rows_total", C, "",
     "Active rows over all steps; divided by the steps it is the mean batch"},
    {"latchd_queue_wait_seconds", H, "",
     "Time from submission of a request until the step loop took it"},
    {"latchd_time_to_first_token_seconds", H, "",
     "Time from submission of a generation until its first token"},
    {"latchd_inter_token_latency_seconds", H, "", "Time between two tokens of one generation"},
    {"latchd_prefill_chunk_seconds", H, "", "Time of one prefill chunk"},
    {"latchd_prefill_tokens_total", C, "", "Prompt tokens processed"},
    {"latchd_generated_tokens_total", C, "", "Tokens sampled for clients"},
    {"latchd_graph_hits_total", C, "", "Steps whose graph was already captured"},
    {"latchd_graph_misses_total", C, "", "Steps whose signature had no graph yet"},
    {"latchd_graph_captures_total", C, "", "Graphs captured"},
    {"latchd_graph_bytes", G, "", "Memory held by captured graphs"},
    {"latchd_violations_total", C, "invariant", "Device invariants latched, by name"},
    {"latchd_requests_cancelled_total", C, "",
     "Requests ended by their client, a deadline or a drain"},
    {"latchd_sessions", G, "state", "Open sessions by state: idle, busy, poisoned"},
    {"latchd_kv_free_tokens", G, "", "KV memory not reserved by any session, in tokens"},
    {"latchd_kv_capacity_tokens", G, "", "KV memory of the pool, in tokens"},
    {"latchd_queued_requests", G, "", "Requests waiting for the step loop"},
    {"latchd_rpcs_total", C, "method,code", "RPCs finished, by method and gRPC status code"},
    {"latchd_rpc_seconds", H, "method", "Time of one RPC; of a stream, its whole life"},
    {"latchd_info", G, "version,backend,model,dtype", "Always 1; what is running is in the labels"},
    {"latchd_memory_bytes", G, "kind", "Memory held by kind: weights, kv, graphs, other"},
    {"latchd_ready", G, "", "1 when /readyz answers 200, else 0"},
    {"latchd_last_good_step_timestamp_seconds", G, "",
     "Unix time of the last step without a violation; 0: none yet"},
};

// 1-2-5 per decade from `low` to `high` seconds: a captured step takes 100 us or less, a stream
// minutes.
Histogram::BucketBoundaries Seconds(double low, double high) {
  Histogram::BucketBoundaries out;
  for (double decade = low; decade <= high * 1.01; decade *= 10) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      if (decade * factor <= high * 1.01) {
        // Through text, so that a boundary prints as 0.0002 and not 0.00019999999999999998.
        out.push_back(std::strtod(absl::StrCat(decade * factor).c_str(), nullptr));
      }
    }
  }
  return out;
}

const char* TypeName(MetricType type) {
  switch (type) {
    case MetricType::kCounter: return "counter";
    case MetricType::kGauge: return "gauge";
    case MetricType::kHistogram: return "histogram";
  }
  return "?";
}

}  // namespace

const std::vector<MetricInfo>& MetricList() { return kList; }

std::string MetricListText() {
  std::string out;
  for (const MetricInfo& metric : kList) {
    absl::StrAppend(&out, metric.name, " ", TypeName(metric.type));
    if (*metric.labels) absl::StrAppend(&out, " {", metric.labels, "}");
    absl::StrAppend(&out, ": ", metric.help, "\n");
  }
  return out;
}

struct Metrics::Impl {
  prometheus::Registry registry;

  Family<Counter>& Counters(Id id) {
    return prometheus::BuildCounter().Name(kList[id].name).Help(kList[id].help).Register(registry);
  }
  Family<Gauge>& Gauges(Id id) {
    return prometheus::BuildGauge().Name(kList[id].name).Help(kList[id].help).Register(registry);
  }
  Family<Histogram>& Histograms(Id id) {
    return prometheus::BuildHistogram()
        .Name(kList[id].name)
        .Help(kList[id].help)
        .Register(registry);
  }
  Counter& One(Id id) { return Counters(id).Add({}); }
  Gauge& Level(Id id) { return Gauges(id).Add({}); }
  Histogram& Times(Id id, double low, double high) {
    return Histograms(id).Add({}, Seconds(low, high));
  }

  // Registered in the order of the list, which is the order of /metrics.
  Histogram& step_seconds = Times(kStepSeconds, 1e-5, 1);
  Counter& step_rows = One(kStepRows);
  Histogram& queue_seconds = Times(kQueueSeconds, 1e-6, 10);
  Histogram& ttft = Times(kTtft, 1e-4, 100);
  Histogram& itl = Times(kItl, 1e-5, 10);
  Histogram& prefill_seconds = Times(kPrefillSeconds, 1e-4, 10);
  Counter& prefill_tokens = One(kPrefillTokens);
  Counter& generated = One(kGenerated);
  Counter& graph_hits = One(kGraphHits);
  Counter& graph_misses = One(kGraphMisses);
  Counter& graph_captures = One(kGraphCaptures);
  Gauge& graph_bytes = Level(kGraphBytes);
  Family<Counter>& violations = Counters(kViolations);
  Counter& cancelled = One(kCancelled);
  Family<Gauge>& sessions = Gauges(kSessions);
  Gauge& kv_free = Level(kKvFree);
  Gauge& kv_total = Level(kKvTotal);
  Gauge& queued = Level(kQueued);
  Family<Counter>& rpcs = Counters(kRpcs);
  Family<Histogram>& rpc_seconds = Histograms(kRpcSeconds);
  Family<Gauge>& info = Gauges(kInfo);
  Family<Gauge>& memory = Gauges(kMemory);
  Gauge& ready = Level(kReady);
  Gauge& last_good_step = Level(kLastGoodStep);

  const Histogram::BucketBoundaries rpc_buckets = Seconds(1e-5, 100);
};

Metrics::Metrics() : impl_(std::make_unique<Impl>()) {
  // Series that exist from the start, so that rate() sees the first violation and absence means
  // "not scraped".
  for (const InvariantInfo& invariant : kInvariants) {
    impl_->violations.Add({{"invariant", std::string(invariant.name)}});
  }
}
Metrics::~Metrics() = default;

void Metrics::StepDone(int64_t rows, double seconds) {
  impl_->step_seconds.Observe(seconds);
  impl_->step_rows.Increment(static_cast<double>(rows));
}
void Metrics::QueueWait(double seconds) { impl_->queue_seconds.Observe(seconds); }
void Metrics::TimeToFirstToken(double seconds) { impl_->ttft.Observe(seconds); }
void Metrics::InterTokenLatency(double seconds) { impl_->itl.Observe(seconds); }
void Metrics::PrefillDone(int64_t tokens, double seconds) {
  impl_->prefill_seconds.Observe(seconds);
  impl_->prefill_tokens.Increment(static_cast<double>(tokens));
}
void Metrics::TokensGenerated(int64_t count) {
  impl_->generated.Increment(static_cast<double>(count));
}
void Metrics::GraphHit() { impl_->graph_hits.Increment(); }
void Metrics::GraphMiss() { impl_->graph_misses.Increment(); }
void Metrics::GraphCaptured(int64_t bytes) {
  impl_->graph_captures.Increment();
  impl_->graph_bytes.Increment(static_cast<double>(bytes));
}
void Metrics::ViolationLatched(const std::string& invariant) {
  impl_->violations.Add({{"invariant", invariant}}).Increment();
}
void Metrics::RequestCancelled() { impl_->cancelled.Increment(); }
void Metrics::SetSessions(const std::string& state, int64_t count) {
  impl_->sessions.Add({{"state", state}}).Set(static_cast<double>(count));
}
void Metrics::SetKvTokens(int64_t free, int64_t total) {
  impl_->kv_free.Set(static_cast<double>(free));
  impl_->kv_total.Set(static_cast<double>(total));
}
void Metrics::SetQueueDepth(int64_t depth) { impl_->queued.Set(static_cast<double>(depth)); }
void Metrics::RpcDone(const std::string& method, const std::string& code, double seconds) {
  impl_->rpcs.Add({{"method", method}, {"code", code}}).Increment();
  impl_->rpc_seconds.Add({{"method", method}}, impl_->rpc_buckets).Observe(seconds);
}
void Metrics::SetInfo(const std::string& version, const std::string& backend,
                      const std::string& model, const std::string& dtype) {
  impl_->info.Add({{"version", version}, {"backend", backend}, {"model", model}, {"dtype", dtype}})
      .Set(1);
}
void Metrics::SetMemory(const std::string& kind, int64_t bytes) {
  impl_->memory.Add({{"kind", kind}}).Set(static_cast<double>(bytes));
}
void Metrics::SetReady(bool ready) { impl_->ready.Set(ready ? 1 : 0); }
void Metrics::SetLastGoodStep(double unix_seconds) { impl_->last_good_step.Set(unix_seconds); }

std::string Metrics::Render() const {
  return prometheus::TextSerializer().Serialize(impl_->registry.Collect());
}

}  // namespace latchd
