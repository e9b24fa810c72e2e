#include "runtime/graph/graph_cache.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace latchd {

absl::Status GraphCache::Warm(const Signature& signature, const Launch& launch) {
  absl::Status status = launch(device_);
  if (status.ok()) status = device_.Synchronize();
  if (!status.ok()) {
    entries_.erase(signature);
    return status;
  }
  auto& entry = entries_[signature];
  if (entry == nullptr) entry = std::make_unique<Entry>(Entry{signature, nullptr, 0});
  return absl::OkStatus();
}

absl::Status GraphCache::Capture(const Signature& signature, const Signature& launched,
                                 const Launch& launch) {
  const auto entry = entries_.find(signature);
  if (entry == entries_.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("signature was not warmed: warm the fixed decode shape first; signature: ",
                     signature.ToString()));
  }
  if (!(launched == signature)) {
    entries_.erase(entry);
    return absl::FailedPreconditionError(
        absl::StrCat("captured step differs from the warmed one; warmed: ", signature.ToString(),
                     "; captured: ", launched.ToString()));
  }
  // Recording this signature again replaces its graph, so only the others count.
  const size_t captured = std::count_if(entries_.begin(), entries_.end(), [&](const auto& item) {
    return item.second->graph != nullptr && item.second != entry->second;
  });
  if (captured >= max_graphs_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "graph cache holds ", captured, " graphs, its limit; signature: ", signature.ToString()));
  }

  if (absl::Status status = device_.BeginCapture(); !status.ok()) return status;
  const absl::Status recorded = launch(device_);
  // The capture is ended on failure too: a device left capturing would refuse everything after.
  absl::StatusOr<std::unique_ptr<Graph>> graph = device_.EndCapture();
  if (!recorded.ok() || !graph.ok()) {
    entries_.erase(entry);
    return recorded.ok() ? graph.status() : recorded;
  }
  entry->second->graph = *std::move(graph);
  ++counters_.captures;
  return absl::OkStatus();
}

absl::Status GraphCache::Replay(const Signature& signature) {
  const auto entry = entries_.find(signature);
  if (entry == entries_.end() || entry->second->graph == nullptr) {
    ++counters_.misses;
    return absl::FailedPreconditionError(
        absl::StrCat("no captured graph for this signature: ", signature.ToString()));
  }
  ++counters_.hits;
  ++entry->second->replays;
  return device_.Replay(*entry->second->graph);
}

size_t GraphCache::bytes() const {
  size_t total = 0;
  for (const auto& [signature, entry] : entries_) {
    if (entry->graph != nullptr) total += entry->graph->bytes();
  }
  return total;
}

std::vector<const GraphCache::Entry*> GraphCache::entries() const {
  std::vector<const Entry*> list;
  for (const auto& [signature, entry] : entries_) list.push_back(entry.get());
  std::sort(list.begin(), list.end(),
            [](const Entry* a, const Entry* b) { return a->signature.rows < b->signature.rows; });
  return list;
}

}  // namespace latchd
