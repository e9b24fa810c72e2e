#include "server/attention_convert.h"

#include <utility>

#include "server/attention_check.h"
#include "server/attention_tensor.h"
#include "server/grpc_status.h"
#include "server/proto_convert.h"
#include "server/utf8.h"

namespace latchd {
namespace {

void FillTensor(DType dtype, std::initializer_list<int64_t> shape, std::string&& data,
                v1::Tensor* out) {
  out->set_dtype(ToElementType(dtype));
  out->mutable_shape()->Add(shape.begin(), shape.end());
  out->set_data(std::move(data));
}

}  // namespace

void FillAttentionSession(const AttentionSessionInfo& info, v1::AttentionSession* out) {
  out->set_session_id(info.id);
  out->set_state(info.violation ? "poisoned" : info.busy ? "busy" : "idle");
  out->set_signature(ToValidUtf8(info.signature));
  out->set_capacity_tokens(info.config->capacity_tokens);
  out->set_batch(info.config->batch);
  out->set_layers(info.config->layers);
  out->set_kv_bytes(static_cast<int64_t>(info.kv_bytes));
  out->set_steps(info.steps);
  if (info.violation) *out->mutable_violation() = ToProto(*info.violation);
  out->set_owner(ToValidUtf8(info.config->owner));
  out->set_idle_ms(absl::ToInt64Milliseconds(info.idle));
  out->mutable_lengths()->Add(info.lengths.begin(), info.lengths.end());
}

void FillAttentionResult(AttentionResult&& result, const AttentionConfig& config,
                         int64_t q_sequence, v1::AttentionResponse* out) {
  // A poisoned session skips its calls: there is no output to send then.
  if (!result.output.empty()) {
    FillTensor(config.dtype, {config.batch, q_sequence, config.num_heads * config.head_size},
               std::move(result.output), out->mutable_output());
  }
  const auto cache = {config.batch, config.kv_num_heads, config.capacity_tokens, config.head_size};
  if (!result.present_key.empty()) {
    FillTensor(config.dtype, cache, std::move(result.present_key), out->mutable_present_key());
  }
  if (!result.present_value.empty()) {
    FillTensor(config.dtype, cache, std::move(result.present_value), out->mutable_present_value());
  }
  v1::AttentionResponse::Variants* variants = out->mutable_variants();
  variants->set_metadata(result.metadata_variant);
  variants->set_prep(result.prep_variant);
  variants->set_attention(result.attention_variant);
  variants->set_captured(result.captured);
  FillTimings(result.timings, out->mutable_timings());
  if (result.violation) *out->mutable_violation() = ToProto(*result.violation);
}

void FillCapabilities(const EngineStatus& status, int64_t max_message_bytes,
                      v1::GetCapabilitiesResponse* out) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    out->add_dtypes(ToElementType(dtype));
  }
  out->set_max_head_size(kMaxAttentionHeadSize);
  out->set_max_message_bytes(max_message_bytes);
  out->set_max_sessions(status.max_sessions);
  for (const char* name :
       {"scale", "do_rotary", "rotary_interleaved", "partial rotary_dim", "position_ids",
        "local_window_size", "softcap", "smooth_softmax", "head_sink", "attention_bias",
        "packed QKV", "past_key", "attend only"}) {
    out->add_supported(name);
  }
  for (const char* name : {"quantized KV", "k_quant_type", "v_quant_type", "kv_cache_bit_width",
                           "qk_output", "smooth_softmax with head_sink"}) {
    out->add_unsupported(name);
  }
  out->set_backend(status.backend);
}

}  // namespace latchd
