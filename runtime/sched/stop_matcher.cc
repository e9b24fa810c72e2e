#include "runtime/sched/stop_matcher.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace latchd {

std::string StopMatcher::Push(const std::string& text) {
  if (matched_) return "";
  held_ += text;

  // Of one stop string, the first occurrence is also the one that is complete first. Between stop
  // strings the earliest end wins, because that is where a reader of single characters would have
  // stopped.
  size_t first = 0, end = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t at = held_.find(stop);
    if (at == std::string::npos) continue;
    const size_t stop_end = at + stop.size();
    if (stop_end < end || (stop_end == end && at < first)) {
      first = at;
      end = stop_end;
      matched_ = stop;
    }
  }
  if (matched_) {
    std::string shown = held_.substr(0, first);
    held_.clear();
    return shown;
  }

  // Keep the longest end of the text that is the beginning of some stop string. What is shown
  // cannot be taken back, and a kept text is never longer than a stop string less one byte.
  size_t keep = 0;
  for (const std::string& stop : stops_) {
    for (size_t length = std::min(stop.size() - 1, held_.size()); length > keep; --length) {
      if (std::string_view(held_).substr(held_.size() - length) ==
          std::string_view(stop).substr(0, length)) {
        keep = length;
        break;
      }
    }
  }
  std::string shown = held_.substr(0, held_.size() - keep);
  held_.erase(0, shown.size());
  return shown;
}

std::string StopMatcher::Finish() { return std::exchange(held_, ""); }

}  // namespace latchd
