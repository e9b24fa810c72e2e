#include "server/prompt.h"

#include <utility>

#include "server/request_check.h"

namespace latchd {

absl::StatusOr<PrefillRequest> PrepareForSession(Engine& engine,
                                                 const v1::PrefillRequest& request) {
  bool add_special = false;
  if (request.session_id() != 0 && request.has_text() && !request.has_add_special_tokens()) {
    auto info = engine.GetSession(request.session_id());
    if (!info.ok()) return info.status();
    add_special = info->length_tokens == 0;
  }
  return CheckPrefill(request, {engine.model().vocab, engine.tokenizer()}, add_special);
}

absl::StatusOr<PreparedGenerate> PrepareForSession(Engine& engine,
                                                   const v1::GenerateRequest& request) {
  PreparedGenerate out;
  bool add_special = request.session_id() == 0;
  const bool needs_length = request.has_text() && !request.has_add_special_tokens();
  if (request.session_id() != 0 && (needs_length || !request.has_sampling())) {
    auto info = engine.GetSession(request.session_id());
    if (!info.ok()) return info.status();
    add_special = info->length_tokens == 0;
    out.seed = info->sampling.seed;
  }
  auto checked = CheckGenerate(request, {engine.model().vocab, engine.tokenizer()}, add_special);
  if (!checked.ok()) return checked.status();
  out.request = *std::move(checked);
  if (request.session_id() == 0 && !out.request.sampling) {
    // A session of its own has no sampling to fall back on: take the defaults, with a seed to
    // report.
    auto sampling = CheckSampling(v1::Sampling(), engine.model().vocab);
    if (!sampling.ok()) return sampling.status();
    out.request.sampling = *std::move(sampling);
  }
  if (out.request.sampling) out.seed = out.request.sampling->seed;
  return out;
}

}  // namespace latchd
