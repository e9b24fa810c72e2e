#include "server/attention_check.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "server/attention_tensor.h"
#include "server/request_check.h"

// What OpenSession judges; attention_call_check.cc judges the calls.

namespace latchd {
namespace {

absl::Status CheckRange(const std::string& field, int64_t value, int64_t min, int64_t max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return BadField(field, absl::StrCat(min, "..", max), value);
}

// The names that ONNX Runtime knows are safe to repeat; others are a client's text.
absl::Status CheckQuantType(const std::string& field, const std::string& type) {
  if (type.empty() || type == "NONE") return absl::OkStatus();
  const bool known = type == "PER_TENSOR" || type == "PER_CHANNEL";
  return BadField(field, "NONE, since a quantized KV cache is not supported",
                  known ? type : "another name");
}

absl::Status CheckAttributes(const v1::AttentionAttributes& in, AttentionConfig& out) {
  absl::Status status = CheckRange("attributes.num_heads", in.num_heads(), 1, kMaxAttentionHeads);
  if (status.ok()) {
    status = CheckRange("attributes.kv_num_heads", in.kv_num_heads(), 1, kMaxAttentionHeads);
  }
  if (status.ok() && in.num_heads() % in.kv_num_heads() != 0) {
    status = BadField("attributes.kv_num_heads",
                      absl::StrCat("a divisor of num_heads ", in.num_heads()), in.kv_num_heads());
  }
  if (status.ok()) {
    status = CheckRange("attributes.head_size", in.head_size(), 1, kMaxAttentionHeadSize);
  }
  if (status.ok()) status = CheckQuantType("attributes.k_quant_type", in.k_quant_type());
  if (status.ok()) status = CheckQuantType("attributes.v_quant_type", in.v_quant_type());
  if (!status.ok()) return status;
  if (in.kv_cache_bit_width() != 0) {
    return BadField("attributes.kv_cache_bit_width",
                    "0, since a quantized KV cache is not supported", in.kv_cache_bit_width());
  }
  if (in.qk_output() != 0) {
    return BadField("attributes.qk_output", "0, since qk_output is not supported", in.qk_output());
  }
  if (!std::isfinite(in.scale())) {
    return BadField("attributes.scale", "a finite number, or 0 for 1 / sqrt(head_size)",
                    in.scale());
  }
  // Written so that NaN fails.
  if (!(in.softcap() >= 0.0f && std::isfinite(in.softcap()))) {
    return BadField("attributes.softcap", "a finite softcap >= 0", in.softcap());
  }
  const int64_t window = in.has_local_window_size() ? in.local_window_size() : -1;
  if (window == 0 || window < -1 || window > INT32_MAX) {
    return BadField("attributes.local_window_size", absl::StrCat("-1 (off) or 1..", INT32_MAX),
                    window);
  }
  out.num_heads = in.num_heads();
  out.kv_num_heads = in.kv_num_heads();
  out.head_size = in.head_size();
  out.scale = in.scale();
  out.local_window_size = window;
  out.softcap = in.softcap();
  out.do_rotary = in.do_rotary();
  out.rotary_interleaved = in.rotary_interleaved();
  out.smooth_softmax = in.smooth_softmax();
  return absl::OkStatus();
}

absl::Status CheckShape(const v1::OpenAttentionSessionRequest& request, int64_t max_message_bytes,
                        AttentionConfig& out) {
  const auto dtype = ToDType(request.dtype());
  if (!dtype) return BadField("dtype", "f32, f16 or bf16", DTypeName(request.dtype()));
  absl::Status status = CheckRange("batch", request.batch(), 1, kMaxAttentionBatch);
  if (status.ok()) status = CheckRange("layers", request.layers(), 1, kMaxAttentionLayers);
  if (status.ok()) {
    status = CheckRange("capacity_tokens", request.capacity_tokens(), 1, kMaxAttentionCapacity);
  }
  if (!status.ok()) return status;
  out.dtype = *dtype;
  out.batch = request.batch();
  out.layers = request.layers();
  out.capacity_tokens = request.capacity_tokens();
  const int64_t bytes = static_cast<int64_t>(SizeOf(*dtype));
  if (!Product({2, out.layers, out.batch, out.kv_num_heads, out.capacity_tokens, out.head_size,
                bytes})) {
    return BadField("capacity_tokens", "caches whose size fits 64 bits", out.capacity_tokens);
  }
  // All three factors are at most 1024 but for the heads' sum: no overflow.
  const int64_t step = out.batch * (out.num_heads + 2 * out.kv_num_heads) * out.head_size * bytes;
  if (step + kMessageOverheadBytes > max_message_bytes) {
    return BadField("batch",
                    absl::StrCat("a step of at most ", max_message_bytes - kMessageOverheadBytes,
                                 " bytes, which the daemon's largest message holds"),
                    absl::StrCat(step, " bytes"));
  }
  return absl::OkStatus();
}

absl::Status CheckCaches(const v1::OpenAttentionSessionRequest& request, AttentionConfig& out) {
  if (!request.has_cos_cache() || !request.has_sin_cache()) {
    const bool cos = request.has_cos_cache();
    return BadField(cos ? "sin_cache" : "cos_cache", "both cos_cache and sin_cache",
                    cos ? "cos_cache alone" : "sin_cache alone");
  }
  std::vector<v1::ElementType> dtypes = {v1::ELEMENT_TYPE_F32};
  if (out.dtype != DType::kF32) dtypes.push_back(v1::ELEMENT_TYPE_F16);
  const v1::Tensor& cos = request.cos_cache();
  const v1::Tensor& sin = request.sin_cache();
  absl::Status status =
      CheckTensor(cos, "cos_cache", dtypes,
                  {Extent("rows", 1, INT32_MAX), Extent("rotary_dim/2", 1, out.head_size / 2)});
  if (!status.ok()) return status;
  // Both describe the same rotary_dim and have the same dtype.
  status = CheckTensor(sin, "sin_cache", {cos.dtype()}, {cos.shape(0), cos.shape(1)});
  if (!status.ok()) return status;
  out.cos_cache = Floats(cos);
  out.sin_cache = Floats(sin);
  out.rotary_rows = cos.shape(0);
  out.rotary_dim = 2 * cos.shape(1);
  return absl::OkStatus();
}

absl::Status CheckRope(v1::OpenAttentionSessionRequest::Rope rope, AttentionConfig& out) {
  if (!(rope.theta() > 0.0 && std::isfinite(rope.theta()))) {
    return BadField("rope.theta", "a finite theta > 0", rope.theta());
  }
  if (rope.scaling() == 0.0) rope.set_scaling(1.0);
  if (!(rope.scaling() > 0.0 && std::isfinite(rope.scaling()))) {
    return BadField("rope.scaling", "a finite scaling > 0, or 0 for 1", rope.scaling());
  }
  if (rope.rotary_dim() == 0) rope.set_rotary_dim(out.head_size);
  if (rope.rotary_dim() < 2 || rope.rotary_dim() > out.head_size || rope.rotary_dim() % 2 != 0) {
    return BadField("rope.rotary_dim", absl::StrCat("an even number in 2..", out.head_size),
                    rope.rotary_dim());
  }
  if (rope.rows() == 0) rope.set_rows(out.capacity_tokens);
  // Explicit positions may stay below a table shorter than the cache; implicit ones reach its end.
  const int64_t min = out.explicit_positions ? 1 : out.capacity_tokens;
  const int64_t max = kMaxRopeElements / (rope.rotary_dim() / 2);
  if (rope.rows() < min || rope.rows() > max) {
    return BadField("rope.rows",
                    absl::StrCat("rows >= ", min, out.explicit_positions ? "" : " (the capacity)",
                                 " and <= ", max),
                    rope.rows());
  }
  FillRope(rope, out);
  return absl::OkStatus();
}

absl::Status CheckRotary(const v1::OpenAttentionSessionRequest& request, AttentionConfig& out) {
  const bool caches = request.has_cos_cache() || request.has_sin_cache();
  out.explicit_positions = request.explicit_positions();
  if (!out.do_rotary) {
    if (caches) {
      return BadField(request.has_cos_cache() ? "cos_cache" : "sin_cache",
                      "nothing without do_rotary", "a cache");
    }
    if (request.has_rope()) return BadField("rope", "nothing without do_rotary", "a rope");
    if (out.explicit_positions) {
      return BadField("explicit_positions", "false without do_rotary", "true");
    }
    return absl::OkStatus();
  }
  if (caches && request.has_rope()) {
    return BadField("rope", "either rope or cos_cache and sin_cache", "both");
  }
  if (caches) return CheckCaches(request, out);
  if (request.has_rope()) return CheckRope(request.rope(), out);
  return BadField("cos_cache", "cos_cache and sin_cache, or rope, with do_rotary", "nothing");
}

absl::Status CheckSink(const v1::OpenAttentionSessionRequest& request, AttentionConfig& out) {
  if (!request.has_head_sink()) return absl::OkStatus();
  if (out.smooth_softmax) {
    return BadField("head_sink", "nothing with smooth_softmax, which is a sink of 0", "a sink");
  }
  std::vector<v1::ElementType> dtypes = {v1::ELEMENT_TYPE_F32};
  if (out.dtype != DType::kF32) dtypes.push_back(ToElementType(out.dtype));
  absl::Status status = CheckTensor(request.head_sink(), "head_sink", dtypes, {out.num_heads});
  if (!status.ok()) return status;
  out.head_sink = Floats(request.head_sink());
  for (size_t h = 0; h < out.head_sink.size(); ++h) {
    // -inf is a head without a sink; +inf and NaN leave nothing of the softmax.
    if (!(out.head_sink[h] < INFINITY)) {
      return BadField(absl::StrCat("head_sink[", h, "]"), "a number below infinity",
                      out.head_sink[h]);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRest(const v1::OpenAttentionSessionRequest& request, AttentionConfig& out) {
  switch (request.backend()) {
    case v1::OpenAttentionSessionRequest::BACKEND_UNSPECIFIED:
      out.backend = AttentionBackend::kAuto;
      break;
    case v1::OpenAttentionSessionRequest::BACKEND_FLASH:
      out.backend = AttentionBackend::kFlash;
      break;
    case v1::OpenAttentionSessionRequest::BACKEND_REFERENCE:
      out.backend = AttentionBackend::kReference;
      break;
    default:
      return BadField("backend", "unspecified (0), flash (1) or reference (2)",
                      static_cast<int>(request.backend()));
  }
  if (request.ttl_ms() < 0) return BadField("ttl_ms", "ttl_ms >= 0", request.ttl_ms());
  if (request.owner().size() > kMaxOwnerBytes) {
    return BadField("owner", absl::StrCat("at most ", kMaxOwnerBytes, " bytes"),
                    request.owner().size());
  }
  absl::Status status = CheckUtf8(request.owner(), "owner");
  if (!status.ok()) return status;
  out.packed_qkv = request.packed_qkv();
  out.disable_prep_fusion = request.disable_prep_fusion();
  out.ttl = absl::Milliseconds(request.ttl_ms());
  out.owner = request.owner();
  return absl::OkStatus();
}

}  // namespace

void FillRope(const v1::OpenAttentionSessionRequest::Rope& rope, AttentionConfig& config) {
  const int64_t half = rope.rotary_dim() / 2;
  config.rotary_dim = rope.rotary_dim();
  config.rotary_rows = rope.rows();
  config.cos_cache.resize(static_cast<size_t>(rope.rows() * half));
  config.sin_cache.resize(config.cos_cache.size());
  std::vector<double> frequency(static_cast<size_t>(half));
  for (int64_t i = 0; i < half; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(rope.rotary_dim());
    frequency[static_cast<size_t>(i)] = std::pow(rope.theta(), exponent) / rope.scaling();
  }
  size_t at = 0;
  for (int64_t row = 0; row < rope.rows(); ++row) {
    for (const double f : frequency) {
      const double angle = static_cast<double>(row) * f;
      config.cos_cache[at] = static_cast<float>(std::cos(angle));
      config.sin_cache[at++] = static_cast<float>(std::sin(angle));
    }
  }
}

absl::StatusOr<AttentionConfig> CheckOpenAttention(const v1::OpenAttentionSessionRequest& request,
                                                   int64_t max_message_bytes) {
  AttentionConfig out;
  absl::Status status = CheckAttributes(request.attributes(), out);
  if (status.ok()) status = CheckShape(request, max_message_bytes, out);
  if (status.ok()) status = CheckRest(request, out);
  if (status.ok()) status = CheckSink(request, out);
  if (status.ok()) status = CheckRotary(request, out);  // last: it may compute a large table
  if (!status.ok()) return status;
  return out;
}

absl::Status CheckTruncateAttention(const v1::TruncateAttentionRequest& request) {
  absl::Status status = CheckSessionId(request.session_id());
  if (!status.ok()) return status;
  return CheckRange("length", request.length(), 0, kMaxAttentionCapacity);
}

int64_t MaxImportBytes(const AttentionConfig& config) {
  // A tensor's entry in the header takes about 100 bytes.
  constexpr int64_t kHeaderBytes = 1 << 16, kEntryBytes = 256;
  return 2 * config.layers *
             (config.batch * config.kv_num_heads * config.capacity_tokens * config.head_size *
                  static_cast<int64_t>(SizeOf(config.dtype)) +
              kEntryBytes) +
         kHeaderBytes;
}

}  // namespace latchd
