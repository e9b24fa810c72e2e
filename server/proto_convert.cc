#include "server/proto_convert.h"

#include "server/grpc_status.h"
#include "server/utf8.h"

namespace latchd {
namespace {

v1::Session::State StateOf(SessionState state) {
  switch (state) {
    case SessionState::kIdle: return v1::Session::STATE_IDLE;
    case SessionState::kPrefilling: return v1::Session::STATE_PREFILLING;
    case SessionState::kStepping: return v1::Session::STATE_STEPPING;
    case SessionState::kGenerating: return v1::Session::STATE_GENERATING;
    case SessionState::kPoisoned: return v1::Session::STATE_POISONED;
  }
  return v1::Session::STATE_UNSPECIFIED;
}

v1::FinishReason ReasonOf(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength: return v1::FINISH_REASON_LENGTH;
    case FinishReason::kStopToken: return v1::FINISH_REASON_STOP_TOKEN;
    case FinishReason::kStopString: return v1::FINISH_REASON_STOP_STRING;
    case FinishReason::kCapacity: return v1::FINISH_REASON_CAPACITY;
    case FinishReason::kViolation: return v1::FINISH_REASON_VIOLATION;
    case FinishReason::kCancelled:
    case FinishReason::kDeadline:
    case FinishReason::kError: break;  // these end the stream with a status instead
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

void FillSampling(const SamplingOptions& in, v1::Sampling* out) {
  out->set_temperature(in.temperature);
  out->set_top_k(in.top_k);
  out->set_top_p(in.top_p);
  out->set_min_p(in.min_p);
  out->set_repetition_penalty(in.repetition_penalty);
  out->set_presence_penalty(in.presence_penalty);
  out->set_frequency_penalty(in.frequency_penalty);
  out->set_seed(in.seed);
  for (const auto& [token, bias] : in.logit_bias) (*out->mutable_logit_bias())[token] = bias;
}

}  // namespace

std::string TokenText(const Tokenizer* tokenizer, int32_t token) {
  return tokenizer == nullptr ? "" : ToValidUtf8(tokenizer->TokenBytes(token));
}

void FillTimings(const Timings& timings, v1::Timings* out) {
  out->set_queued_us(absl::ToInt64Microseconds(timings.queued));
  out->set_device_us(absl::ToInt64Microseconds(timings.device));
}

void FillNextToken(const Sampled& sampled, const Tokenizer* tokenizer, v1::NextToken* out) {
  out->set_token_id(sampled.token);
  out->set_text(TokenText(tokenizer, sampled.token));
  out->set_logprob(sampled.logprob);
  for (const TokenLogprob& entry : sampled.top) {
    v1::TokenLogprob* top = out->add_top();
    top->set_token_id(entry.token);
    top->set_logprob(entry.logprob);
    top->set_text(TokenText(tokenizer, entry.token));
  }
  out->mutable_logits()->Add(sampled.logits.begin(), sampled.logits.end());
}

void FillSession(const SessionInfo& info, v1::Session* out) {
  out->set_session_id(info.id);
  out->set_state(StateOf(info.state));
  out->set_length_tokens(info.length_tokens);
  out->set_capacity_tokens(info.capacity_tokens);
  if (info.next_token) out->set_next_token_id(*info.next_token);
  if (info.latch.mask != 0) {
    *out->mutable_violation() = ToProto(Violation{info.latch, DescribeLatch(info.latch)});
  }
  out->set_steps(info.steps);
  FillSampling(info.sampling, out->mutable_sampling());
  out->set_ttl_ms(absl::ToInt64Milliseconds(info.ttl));
  out->set_created_unix_ms(absl::ToUnixMillis(info.created));
  out->set_last_used_unix_ms(absl::ToUnixMillis(info.last_used));
  out->set_owner(ToValidUtf8(info.owner));
}

void FillModel(const ModelConfig& model, const EngineStatus& status, const Tokenizer* tokenizer,
               v1::GetModelResponse* out) {
  out->set_name(ToValidUtf8(model.name));
  out->set_architecture(ToValidUtf8(model.architecture));
  out->set_path(ToValidUtf8(status.model_path));
  out->set_fingerprint(status.fingerprint);
  out->set_dtype(status.dtype);
  out->set_layers(model.layers);
  out->set_hidden(model.hidden);
  out->set_q_heads(model.q_heads);
  out->set_kv_heads(model.kv_heads);
  out->set_head_dim(model.head_dim);
  out->set_feed_forward(model.feed_forward);
  out->set_vocab(model.vocab);
  out->set_context_tokens(model.context_tokens);
  out->set_has_tokenizer(tokenizer != nullptr);
  if (model.bos_token) out->set_bos_token_id(*model.bos_token);
  out->mutable_eos_token_ids()->Add(model.eos_tokens.begin(), model.eos_tokens.end());
  out->set_has_chat_template(tokenizer != nullptr && !tokenizer->chat_template().empty());
}

void FillStatus(const EngineStatus& status, bool draining, bool fault_injection, absl::Time now,
                v1::GetStatusResponse* out) {
  out->set_version(LATCHD_VERSION);
  out->set_backend(status.backend);
  out->set_device(ToValidUtf8(status.device_name));
  out->set_device_note(ToValidUtf8(status.device_note));
  out->set_sessions(status.sessions);
  out->set_max_sessions(status.max_sessions);
  out->set_kv_tokens_total(status.kv_tokens_total);
  out->set_kv_tokens_free(status.kv_tokens_free);
  out->set_max_capacity_tokens(status.max_capacity);
  out->set_weight_bytes(static_cast<int64_t>(status.weight_bytes));
  out->set_kv_bytes(static_cast<int64_t>(status.kv_bytes));
  out->set_graph_bytes(static_cast<int64_t>(status.graph_bytes));
  out->set_other_bytes(static_cast<int64_t>(status.other_bytes));
  for (const GraphInfo& graph : status.graphs) {
    v1::GetStatusResponse::Graph* entry = out->add_graphs();
    entry->set_signature(ToValidUtf8(graph.signature));
    entry->set_nodes(static_cast<int64_t>(graph.nodes));
    entry->set_bytes(static_cast<int64_t>(graph.bytes));
    entry->set_replays(graph.replays);
  }
  out->set_graph_hits(status.graph_hits);
  out->set_graph_misses(status.graph_misses);
  out->set_graph_captures(status.graph_captures);
  out->set_uptime_ms(absl::ToInt64Milliseconds(now - status.started));
  // A default absl::Time is the Unix epoch: no step yet.
  if (status.last_good_step > absl::UnixEpoch()) {
    out->set_last_good_step_ms_ago(absl::ToInt64Milliseconds(now - status.last_good_step));
  }
  out->set_draining(draining || status.draining);
  if (!status.fault.ok()) out->set_fault(ToValidUtf8(status.fault.ToString()));
  out->set_fault_injection(fault_injection);
}

void FillPrefill(const PrefillResult& result, int64_t prompt_tokens, const Tokenizer* tokenizer,
                 v1::PrefillResponse* out) {
  out->set_length_tokens(result.length_tokens);
  out->set_prompt_tokens(prompt_tokens);
  FillNextToken(result.next, tokenizer, out->mutable_next());
  FillTimings(result.timings, out->mutable_timings());
}

void FillStep(const StepResult& result, const Tokenizer* tokenizer, v1::StepResponse* out) {
  if (result.violation) {
    *out->mutable_violation() = ToProto(*result.violation);
    return;
  }
  v1::StepResult* step = out->mutable_result();
  step->set_length_tokens(result.length_tokens);
  step->set_appended_token_id(result.appended_token);
  FillNextToken(result.next, tokenizer, step->mutable_next());
  FillTimings(result.timings, step->mutable_timings());
}

void FillToken(const GeneratedToken& token, const Tokenizer* tokenizer,
               v1::GenerateResponse::Token* out) {
  FillNextToken(token.sampled, tokenizer, out->mutable_next());
  out->set_text(ToValidUtf8(token.text));
  out->set_length_tokens(token.length_tokens);
  FillTimings(token.timings, out->mutable_timings());
}

void FillFinish(const GenerateSummary& summary, SessionId session, uint64_t seed,
                v1::GenerateResponse::Finish* out) {
  out->set_reason(ReasonOf(summary.reason));
  out->set_text(ToValidUtf8(summary.text));
  if (summary.violation) *out->mutable_violation() = ToProto(*summary.violation);
  v1::Usage* usage = out->mutable_usage();
  usage->set_prompt_tokens(summary.prompt_tokens);
  usage->set_generated_tokens(summary.generated_tokens);
  usage->set_prefill_us(absl::ToInt64Microseconds(summary.prefill_time));
  usage->set_decode_us(absl::ToInt64Microseconds(summary.decode_time));
  out->set_session_id(session);
  out->set_matched_stop(ToValidUtf8(summary.matched_stop));
  out->set_seed(seed);
}

}  // namespace latchd
