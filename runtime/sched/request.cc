#include "runtime/sched/request.h"

#include "absl/strings/str_cat.h"

namespace latchd {
namespace {

const char* Name(Request::State state) {
  switch (state) {
    case Request::State::kQueued: return "queued";
    case Request::State::kPrefilling: return "prefilling";
    case Request::State::kDecoding: return "decoding";
    case Request::State::kDone: return "done";
  }
  return "?";
}

// A Prefill goes queued, prefilling, done; a Step queued, decoding, done; a Generate takes either
// way to decoding. Done is reachable from everywhere (refusal, cancel, deadline, fault) and left
// for nothing: that is what makes a second answer impossible.
bool Allowed(Request::State from, Request::State to) {
  using enum Request::State;
  switch (from) {
    case kQueued: return to == kPrefilling || to == kDecoding || to == kDone;
    case kPrefilling: return to == kDecoding || to == kDone;
    case kDecoding: return to == kDone;
    case kDone: return false;
  }
  return false;
}

}  // namespace

absl::Status Request::SetState(State next) {
  if (!Allowed(state, next)) {
    return absl::InternalError(
        absl::StrCat("request ", id, ": no transition from ", Name(state), " to ", Name(next)));
  }
  state = next;
  return absl::OkStatus();
}

}  // namespace latchd
