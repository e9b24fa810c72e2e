#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/attention_check.h"
#include "server/attention_tensor.h"
#include "server/request_check.h"

// What Prefill and Step judge: first shapes, which need nothing but the request and the session's
// config, then, for Prefill only, the values.

namespace latchd {
namespace {

// One call under judgement.
struct Judge {
  const v1::AttentionRequest& request;
  const AttentionConfig& config;
  const AttentionCallKind kind;
  AttentionCall& call;

  std::vector<v1::ElementType> dtype() const { return {ToElementType(config.dtype)}; }
  // The session's dtype or f32: what is widened on arrival.
  std::vector<v1::ElementType> wide_dtypes() const {
    std::vector<v1::ElementType> out = {v1::ELEMENT_TYPE_F32};
    if (config.dtype != DType::kF32) out.push_back(ToElementType(config.dtype));
    return out;
  }

  absl::Status Query();
  absl::Status KeyAndValue();
  absl::Status Past();
  absl::Status SeqlensK();
  absl::Status PositionIds();
  absl::Status Bias();
  absl::Status Lengths();        // Prefill
  absl::Status PositionRange();  // Prefill
};

absl::Status Judge::Query() {
  const int64_t heads =
      config.packed_qkv ? config.num_heads + 2 * config.kv_num_heads : config.num_heads;
  const int64_t hidden = heads * config.head_size;
  if (!request.has_query()) {
    return BadField("query", absl::StrCat("a tensor [", config.batch, ", S, ", hidden, "]"),
                    "nothing");
  }
  const bool step = kind == AttentionCallKind::kStep;
  // Kernels count elements and rows in int32.
  const int64_t max_s = std::min<int64_t>(INT32_MAX / (config.batch * hidden),  //
                                          config.capacity_tokens);
  absl::Status status =
      CheckTensor(request.query(), "query", dtype(),
                  {config.batch, step ? Extent(1) : Extent("S", 1, max_s), hidden});
  if (!status.ok()) return status;
  call.q_sequence = request.query().shape(1);
  call.query = request.query().data();
  return absl::OkStatus();
}

absl::Status Judge::KeyAndValue() {
  if (config.packed_qkv) {
    for (const auto& [present, name] :
         {std::pair(request.has_key(), "key"), std::pair(request.has_value(), "value")}) {
      if (present) return BadField(name, "nothing with packed_qkv", "a tensor");
    }
    call.kv_sequence = call.q_sequence;
    return absl::OkStatus();
  }
  if (!request.has_key() || !request.has_value()) {
    const bool neither = !request.has_key() && !request.has_value();
    return BadField(request.has_key() ? "value" : "key",
                    "both key and value, since the session is not packed_qkv",
                    neither             ? "neither"
                    : request.has_key() ? "key alone"
                                        : "value alone");
  }
  const int64_t hidden = config.kv_num_heads * config.head_size;
  const v1::Tensor& key = request.key();
  // Skv is S, or 0 to attend only: told apart by the shape itself.
  const bool empty = key.shape_size() == 3 && key.shape(1) == 0;
  absl::Status status = CheckTensorType(key, "key", dtype());
  if (!status.ok()) return status;
  const int64_t sequence = empty ? 0 : call.q_sequence;
  if (key.shape_size() != 3 || key.shape(0) != config.batch || key.shape(1) != sequence ||
      key.shape(2) != hidden) {
    return BadField(
        "key.shape",
        absl::StrCat("[", config.batch, ", ", call.q_sequence, ", ", hidden,
                     "], or a sequence of 0 to attend only"),
        key.shape_size() <= 8 ? ShapeText(key) : absl::StrCat("rank ", key.shape_size()));
  }
  status = CheckTensorData(key, "key");
  if (status.ok()) {
    status = CheckTensor(request.value(), "value", dtype(), {config.batch, sequence, hidden});
  }
  if (!status.ok()) return status;
  call.kv_sequence = sequence;
  call.key = key.data();
  call.value = request.value().data();
  return absl::OkStatus();
}

absl::Status Judge::Past() {
  const bool key = request.has_past_key(), value = request.has_past_value();
  if (kind == AttentionCallKind::kStep) {
    if (key || value) {
      return BadField(key ? "past_key" : "past_value",
                      "nothing on Step: the session holds the past", "a tensor");
    }
    if (request.want_present()) return BadField("want_present", "false on Step", "true");
    return absl::OkStatus();
  }
  call.want_present = request.want_present();
  if (!key && !value) return absl::OkStatus();
  if (key != value) {
    return BadField(key ? "past_value" : "past_key", "both past_key and past_value",
                    key ? "past_key alone" : "past_value alone");
  }
  absl::Status status = CheckTensor(request.past_key(), "past_key", dtype(),
                                    {config.batch, config.kv_num_heads,
                                     Extent("past", 0, config.capacity_tokens), config.head_size});
  if (!status.ok()) return status;
  call.past_tokens = request.past_key().shape(2);
  status = CheckTensor(request.past_value(), "past_value", dtype(),
                       {config.batch, config.kv_num_heads, call.past_tokens, config.head_size});
  if (!status.ok()) return status;
  call.past_key = request.past_key().data();
  call.past_value = request.past_value().data();
  return absl::OkStatus();
}

absl::Status Judge::SeqlensK() {
  const std::string batch = absl::StrCat(config.batch);
  const std::string expected =
      absl::StrCat("[", batch, "] or [", batch, ", 1]",
                   config.batch == 1 ? " or a scalar" : "; a scalar only when batch is 1");
  if (!request.has_seqlens_k()) {
    return BadField("seqlens_k", absl::StrCat("an i32 tensor ", expected), "nothing");
  }
  const v1::Tensor& seqlens = request.seqlens_k();
  absl::Status status = CheckTensorType(seqlens, "seqlens_k", {v1::ELEMENT_TYPE_I32});
  if (!status.ok()) return status;
  const int rank = seqlens.shape_size();
  const bool scalar = rank == 0 && config.batch == 1;
  const bool rows = (rank == 1 || rank == 2) && seqlens.shape(0) == config.batch &&
                    (rank == 1 || seqlens.shape(1) == 1);
  if (!scalar && !rows) {
    return BadField("seqlens_k.shape", expected,
                    rank == 0   ? "a scalar"
                    : rank <= 8 ? ShapeText(seqlens)
                                : absl::StrCat("rank ", rank));
  }
  status = CheckTensorData(seqlens, "seqlens_k");
  if (status.ok()) call.seqlens_k = Int32s(seqlens);
  return status;
}

absl::Status Judge::PositionIds() {
  if (!config.explicit_positions) {
    if (!request.has_position_ids()) return absl::OkStatus();
    return BadField("position_ids", "nothing, since the session has no explicit_positions",
                    "a tensor");
  }
  if (!request.has_position_ids()) {
    return BadField("position_ids",
                    absl::StrCat("an i64 tensor [", config.batch, ", ", call.q_sequence,
                                 "], since the session has explicit_positions"),
                    "nothing");
  }
  absl::Status status = CheckTensor(request.position_ids(), "position_ids", {v1::ELEMENT_TYPE_I64},
                                    {config.batch, call.q_sequence});
  if (status.ok()) call.position_ids = Int64s(request.position_ids());
  return status;
}

absl::Status Judge::Bias() {
  if (!request.has_attention_bias()) return absl::OkStatus();
  const v1::Tensor& bias = request.attention_bias();
  // The kernel reads bias up to a row's total, so the extent is judged even on Step; a total that
  // the device will refuse reads nothing.
  int64_t longest = 1;
  for (const int32_t seqlen : call.seqlens_k) {
    const int64_t total = int64_t{seqlen} + 1;
    if (total <= config.capacity_tokens) longest = std::max(longest, total);
  }
  // 1 or all, for the rows and for the heads.
  const auto either = [&](int index, int64_t all) {
    return Extent(bias.shape_size() == 4 && bias.shape(index) == 1 ? 1 : all);
  };
  absl::Status status = CheckTensor(bias, "attention_bias", wide_dtypes(),
                                    {either(0, config.batch), either(1, config.num_heads),
                                     call.q_sequence, Extent("keys", longest, INT32_MAX)});
  if (!status.ok()) return status;
  call.bias = Floats(bias);
  call.bias_batch = bias.shape(0);
  call.bias_heads = bias.shape(1);
  call.bias_keys = bias.shape(3);
  return absl::OkStatus();
}

absl::Status Judge::Lengths() {
  int64_t longest = 0;
  for (size_t row = 0; row < call.seqlens_k.size(); ++row) {
    const int64_t seqlen = call.seqlens_k[row];
    // New keys and queries are the last of the valid ones.
    const int64_t least = std::max(call.kv_sequence, call.q_sequence) - 1;
    if (seqlen < least || seqlen >= config.capacity_tokens) {
      return BadField(absl::StrCat("seqlens_k[", row, "]"),
                      absl::StrCat(least, "..", config.capacity_tokens - 1, " (", call.q_sequence,
                                   " new tokens, capacity ", config.capacity_tokens, ")"),
                      seqlen);
    }
    const int64_t past = seqlen + 1 - call.kv_sequence;
    if (request.has_past_key() && past > call.past_tokens) {
      return BadField("past_key.shape",
                      absl::StrCat("at least ", past, " past tokens, as seqlens_k[", row, "] says"),
                      call.past_tokens);
    }
    longest = std::max(longest, seqlen + 1);
  }
  if (!request.has_total_sequence_length()) return absl::OkStatus();
  const int64_t total = request.total_sequence_length();
  if (total < longest || total > config.capacity_tokens) {
    return BadField(
        "total_sequence_length",
        absl::StrCat(longest, "..", config.capacity_tokens, " (longest seqlens_k + 1, capacity)"),
        total);
  }
  return absl::OkStatus();
}

absl::Status Judge::PositionRange() {
  if (!config.do_rotary) return absl::OkStatus();
  for (size_t i = 0; i < call.position_ids.size(); ++i) {
    const int64_t position = call.position_ids[i];
    if (position >= 0 && position < config.rotary_rows) continue;
    return BadField(absl::StrCat("position_ids[", i / static_cast<size_t>(call.q_sequence), ", ",
                                 i % static_cast<size_t>(call.q_sequence), "]"),
                    absl::StrCat("0..", config.rotary_rows - 1, ", the rows of the rotary caches"),
                    position);
  }
  if (config.explicit_positions) return absl::OkStatus();
  for (size_t row = 0; row < call.seqlens_k.size(); ++row) {
    // The last query's position is its total - 1.
    if (call.seqlens_k[row] < config.rotary_rows) continue;
    return BadField(absl::StrCat("seqlens_k[", row, "]"),
                    absl::StrCat("a last position in 0..", config.rotary_rows - 1,
                                 ", the rows of the rotary caches"),
                    call.seqlens_k[row]);
  }
  return absl::OkStatus();
}

// The response must pass through gRPC too; with present_key and present_value it is the larger.
absl::Status CheckResponseSize(const AttentionConfig& config, const AttentionCall& call,
                               int64_t max_message_bytes) {
  const int64_t element = static_cast<int64_t>(SizeOf(config.dtype));
  const int64_t output =
      config.batch * call.q_sequence * config.num_heads * config.head_size * element;
  const std::optional<int64_t> present =
      call.want_present ? Product({2, config.batch, config.kv_num_heads, config.capacity_tokens,
                                   config.head_size, element})
                        : 0;
  const int64_t room = max_message_bytes - kMessageOverheadBytes;
  if (present && *present <= room && output <= room - *present) return absl::OkStatus();
  if (!call.want_present) {
    return BadField("query.shape", absl::StrCat("an output of at most ", room, " bytes"), output);
  }
  return BadField("want_present",
                  absl::StrCat("a response of at most ", room, " bytes (use Export)"),
                  present ? absl::StrCat(output, " + ", *present) : "more than 64 bits hold");
}

}  // namespace

absl::StatusOr<AttentionCall> CheckAttentionCall(const v1::AttentionRequest& request,
                                                 const AttentionConfig& config,
                                                 AttentionCallKind kind,
                                                 int64_t max_message_bytes) {
  absl::Status status = CheckSessionId(request.session_id());
  if (!status.ok()) return status;
  if (request.layer() < 0 || request.layer() >= config.layers) {
    return BadField("layer", absl::StrCat("0..", config.layers - 1), request.layer());
  }
  AttentionCall call;
  call.session = request.session_id();
  call.layer = request.layer();
  Judge judge{request, config, kind, call};
  status = judge.Query();
  if (status.ok()) status = judge.KeyAndValue();
  if (status.ok()) status = judge.Past();
  if (status.ok()) status = judge.SeqlensK();
  if (status.ok()) status = judge.PositionIds();
  if (status.ok() && kind == AttentionCallKind::kPrefill) {
    status = judge.Lengths();
    if (status.ok()) status = judge.PositionRange();
  }
  if (status.ok()) status = judge.Bias();
  if (status.ok()) status = CheckResponseSize(config, call, max_message_bytes);
  if (!status.ok()) return status;
  return call;
}

}  // namespace latchd
