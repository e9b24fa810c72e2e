#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace latchd {

enum class MetricType : uint8_t { kCounter, kGauge, kHistogram };

// One row of the list in metrics.cc.
struct MetricInfo {
  const char* name;  // latchd_<what>[_<base unit>][_total]
  MetricType type;
  const char* labels;  // comma-separated label names, or empty
  const char* help;
};

// The one list of what latchd exports. Dashboards and manuals may use no other name (a test holds
// them to it).
const std::vector<MetricInfo>& MetricList();
// The list as text, one metric a line: name, type, labels, help.
std::string MetricListText();

// Every metric latchd exports, by member. Thread-safe; recording costs about 100 ns and never
// allocates except for a new label value. Label values come from closed sets, never from what a
// client sent.
class Metrics {
 public:
  Metrics();
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  void StepDone(int64_t rows, double seconds);  // one replay with `rows` active rows
  void QueueWait(double seconds);
  void TimeToFirstToken(double seconds);
  void InterTokenLatency(double seconds);
  void PrefillDone(int64_t tokens, double seconds);  // one chunk
  void TokensGenerated(int64_t count);
  void GraphHit();
  void GraphMiss();
  void GraphCaptured(int64_t bytes);
  void ViolationLatched(const std::string& invariant);  // InvariantInfo::name
  void RequestCancelled();
  void SetSessions(const std::string& state, int64_t count);  // "idle", "busy", "poisoned"
  void SetKvTokens(int64_t free, int64_t total);
  void SetQueueDepth(int64_t depth);
  void RpcDone(const std::string& method, const std::string& code, double seconds);
  void SetInfo(const std::string& version, const std::string& backend, const std::string& model,
               const std::string& dtype);
  void SetMemory(const std::string& kind, int64_t bytes);  // "weights", "kv", "graphs", "other"
  void SetReady(bool ready);
  void SetLastGoodStep(double unix_seconds);

  // Prometheus text exposition format 0.0.4.
  std::string Render() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace latchd
