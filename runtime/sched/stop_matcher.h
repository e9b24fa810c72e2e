#pragma once

#include <optional>
#include <string>
#include <vector>

namespace latchd {

// Finds stop strings in streamed text. Text that may turn out to begin a stop string is held back.
class StopMatcher {
 public:
  // REQUIRES: no empty string.
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Takes more text; returns what can be shown. Once a stop string is complete, matched() names it
  // (the one that is complete first in the text; the longest of those that end there, so that how
  // the text is cut into tokens does not matter) and nothing from it on is ever returned.
  std::string Push(const std::string& text);
  // The text still held back, at an end without a match.
  std::string Finish();
  const std::optional<std::string>& matched() const { return matched_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  std::optional<std::string> matched_;
};

}  // namespace latchd
