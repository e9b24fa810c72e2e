#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/api/step_tables.h"  // kMaxTopLogprobs, kMaxLogitBias
#include "latchd/v1/decode.pb.h"
#include "runtime/engine.h"

// Turns client messages into validated structs: what passes here has every field in range, and
// nothing below asserts on client data. Errors are INVALID_ARGUMENT and read "sampling.top_p:
// expected 0 < top_p <= 1, got 1.5"; they hold field names, numbers and sizes, never a client's
// text. What depends on a session (its length, its room) is judged by the engine.

namespace latchd {

inline constexpr size_t kMaxStopStrings = 16;
inline constexpr size_t kMaxStopBytes = 256;
inline constexpr size_t kMaxStopTokens = 256;
inline constexpr size_t kMaxOwnerBytes = 256;
inline constexpr size_t kMaxChatMessages = 1024;
inline constexpr int64_t kDefaultMaxTokens = 128;

// What the checks need to know of the model.
struct ModelLimits {
  int64_t vocab = 0;
  const Tokenizer* tokenizer = nullptr;  // null: the model has none
};

// A missing seed is drawn at random.
absl::StatusOr<SamplingOptions> CheckSampling(const v1::Sampling& sampling, int64_t vocab);
absl::StatusOr<SessionOptions> CheckOpenSession(const v1::OpenSessionRequest& request,
                                                int64_t vocab);
absl::Status CheckSessionId(uint64_t session_id);
absl::Status CheckTruncate(const v1::TruncateRequest& request);
absl::StatusOr<StepRequest> CheckStep(const v1::StepRequest& request, int64_t vocab);

// A prompt is tokenised last, after everything cheap was checked. `add_special_default`: what an
// unset add_special_tokens means, true on an empty session.
absl::StatusOr<PrefillRequest> CheckPrefill(const v1::PrefillRequest& request,
                                            const ModelLimits& model, bool add_special_default);
// session_id 0 is allowed: a session of the call's own.
absl::StatusOr<GenerateRequest> CheckGenerate(const v1::GenerateRequest& request,
                                              const ModelLimits& model, bool add_special_default);

absl::StatusOr<FaultRequest> CheckInjectFault(const v1::InjectFaultRequest& request);
absl::StatusOr<std::vector<ChatMessage>> CheckChat(const v1::ApplyChatTemplateRequest& request);
// Every id in 0..vocab-1; `field` names the list in the error.
absl::Status CheckTokenIds(const google::protobuf::RepeatedField<int32_t>& ids, int64_t vocab,
                           const std::string& field);
absl::Status CheckUtf8(const std::string& text, const std::string& field);

}  // namespace latchd
