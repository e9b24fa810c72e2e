#pragma once


#include <cstdint>
#include <memory>
#include <string>

namespace latchd {

// Every metric latchd exports, by member. Thread-safe. The list of names, help texts and buckets is in metrics.cc.
class Metrics {
 public:
  Metrics();
  ~Metrics();

  void StepDone(int64_t rows, double seconds);       // one replay
  void QueueWait(double seconds);
  void TimeToFirstToken(double seconds);
  void InterTokenLatency(double seconds);
  void PrefillDone(int64_t tokens, double seconds);  // one chunk
  void TokensGenerated(int64_t count);
  void GraphHit();
  void GraphMiss();
  void GraphCaptured(int64_t bytes);
  void ViolationLatched(const std::string& invariant);
  void RequestCancelled();
  void SetSessions(const std::string& state, int64_t count);
  void SetKvTokens(int64_t free, int64_t total);
  void SetQueueDepth(int64_t depth);
  void RpcDone(const std::string& method, const std::string& code, double seconds);
  void SetInfo(const std::string& version, const std::string& backend, const std::string& model, const std::string& dtype);

  // Prometheus text exposition format 0.0.4.
  std::string Render() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace latchd
