#pragma once

#include <string>

#include "latchd/v1/decode.pb.h"
#include "runtime/engine.h"

// Engine structs to protobuf messages. Strings become valid UTF-8: one token may be half a
// character. `tokenizer` may be null; texts are then empty.

namespace latchd {

std::string TokenText(const Tokenizer* tokenizer, int32_t token);

void FillTimings(const Timings& timings, v1::Timings* out);
void FillNextToken(const Sampled& sampled, const Tokenizer* tokenizer, v1::NextToken* out);
void FillSession(const SessionInfo& info, v1::Session* out);
void FillModel(const ModelConfig& model, const EngineStatus& status, const Tokenizer* tokenizer,
               v1::GetModelResponse* out);
void FillStatus(const EngineStatus& status, bool draining, bool fault_injection, absl::Time now,
                v1::GetStatusResponse* out);
void FillPrefill(const PrefillResult& result, int64_t prompt_tokens, const Tokenizer* tokenizer,
                 v1::PrefillResponse* out);
// Sets the outcome: a result or a violation.
void FillStep(const StepResult& result, const Tokenizer* tokenizer, v1::StepResponse* out);
void FillToken(const GeneratedToken& token, const Tokenizer* tokenizer,
               v1::GenerateResponse::Token* out);
// REQUIRES: a reason that ends a stream with OK: not kCancelled, kDeadline or kError.
void FillFinish(const GenerateSummary& summary, SessionId session, uint64_t seed,
                v1::GenerateResponse::Finish* out);

}  // namespace latchd
