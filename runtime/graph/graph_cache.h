#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/device/device.h"
#include "runtime/graph/signature.h"

namespace latchd {

// Captured steps by signature. One graph per signature, never per session. The order is warm, then
// capture, then replay; using a signature out of order is FAILED_PRECONDITION naming it. Not
// thread-safe: used by the step loop alone.
class GraphCache {
 public:
  struct Counters {
    int64_t hits = 0;
    int64_t misses = 0;
    int64_t captures = 0;
  };
  struct Entry {
    Signature signature;
    std::unique_ptr<Graph> graph;  // null: warmed, not captured
    int64_t replays = 0;
  };
  // Submits every op of the step to the device, in order.
  using Launch = std::function<absl::Status(Device&)>;

  // `max_graphs` bounds what can pile up; one more is RESOURCE_EXHAUSTED. The device must outlive
  // the cache.
  GraphCache(Device& device, size_t max_graphs) : device_(device), max_graphs_(max_graphs) {}

  // Runs the step once, eagerly, and waits. A failure un-warms the signature.
  absl::Status Warm(const Signature& signature, const Launch& launch);
  // Records the step. REQUIRES: the signature was warmed; `launched` is the signature of what
  // `launch` submits, and a difference is FAILED_PRECONDITION naming both.
  absl::Status Capture(const Signature& signature, const Signature& launched, const Launch& launch);
  // Replays the graph of `signature`; counts a hit, or a miss and FAILED_PRECONDITION when it was
  // not captured.
  absl::Status Replay(const Signature& signature);

  const Counters& counters() const { return counters_; }
  size_t bytes() const;
  std::vector<const Entry*> entries() const;

 private:
  Device& device_;
  const size_t max_graphs_;
  absl::flat_hash_map<Signature, std::unique_ptr<Entry>> entries_;
  Counters counters_;
};

}  // namespace latchd
