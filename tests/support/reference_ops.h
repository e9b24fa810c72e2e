#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/api/ops.h"

// What the ops mean, in plain double precision and without any code of the kernels: the formulas of
// kernels/api/ops.h written out again. 16-bit values are decoded by their definition (sign,
// exponent, mantissa), not by convert.h.

namespace latchd::reference {

inline double Decode(DType dtype, const void* data, size_t index) {
  if (dtype == DType::kF32) return static_cast<const float*>(data)[index];
  const uint16_t word = static_cast<const uint16_t*>(data)[index];
  const int mantissa_bits = dtype == DType::kF16 ? 10 : 7;
  const int exponent_bits = 15 - mantissa_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (word >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const double fraction = (word & ((1 << mantissa_bits) - 1)) / std::ldexp(1.0, mantissa_bits);
  const double sign = (word & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) return fraction == 0 ? sign * INFINITY : NAN;
  return exponent == 0 ? sign * std::ldexp(fraction, 1 - bias)
                       : sign * std::ldexp(1.0 + fraction, exponent - bias);
}

// What a value becomes when it is stored as `dtype`: relative error of half a unit in the last
// place.
inline double Epsilon(DType dtype) {
  return dtype == DType::kF32 ? 0x1p-24 : dtype == DType::kF16 ? 0x1p-11 : 0x1p-8;
}

inline std::vector<double> RmsNorm(const std::vector<double>& x, const float* weight, double eps) {
  double squares = 0;
  for (double v : x) squares += v * v;
  std::vector<double> out;
  for (size_t i = 0; i < x.size(); ++i) {
    out.push_back(x[i] / std::sqrt(squares / static_cast<double>(x.size()) + eps) * weight[i]);
  }
  return out;
}

// y of one row; `before` is what y held (for kResidual).
inline std::vector<double> Linear(const LinearOp& op, int64_t row,
                                  const std::vector<double>& before) {
  const int64_t n = op.weight.n, k = op.weight.k;
  std::vector<double> x;
  for (int64_t i = 0; i < k; ++i)
    x.push_back(Decode(op.x_dtype, op.x, static_cast<size_t>(row * k + i)));
  if (op.norm_weight != nullptr) x = RmsNorm(x, op.norm_weight, op.norm_eps);
  std::vector<double> z;
  for (int64_t j = 0; j < n; ++j) {
    double sum = op.bias != nullptr ? op.bias[j] : 0.0;
    for (int64_t i = 0; i < k; ++i) {
      sum += x[static_cast<size_t>(i)] *
             Decode(op.weight.dtype, op.weight.data, static_cast<size_t>(j * k + i));
    }
    z.push_back(sum);
  }
  if (op.epilogue == Epilogue::kStore) return z;
  std::vector<double> y;
  if (op.epilogue == Epilogue::kResidual) {
    for (size_t j = 0; j < z.size(); ++j) y.push_back(before[j] + z[j]);
    return y;
  }
  for (size_t j = 0; j < z.size() / 2; ++j) {
    const double gate = z[j / 8 * 16 + j % 8], up = z[j / 8 * 16 + 8 + j % 8];
    y.push_back(gate / (1 + std::exp(-gate)) * up);
  }
  return y;
}

// RoPE and head norm of one head.
inline std::vector<double> PrepareHead(const AttentionPrepOp& op, const float* x, const float* norm,
                                       int32_t position) {
  std::vector<double> v(x, x + op.kv.head_dim);
  if (norm != nullptr) v = RmsNorm(v, norm, op.norm_eps);
  if (op.cos == nullptr) return v;
  std::vector<double> out = v;
  const int32_t half = op.rotary_dim / 2;
  for (int32_t i = 0; i < half; ++i) {
    const double c = op.cos[static_cast<size_t>(position) * half + i];
    const double s = op.sin[static_cast<size_t>(position) * half + i];
    const size_t a = static_cast<size_t>(op.rotary_interleaved ? 2 * i : i);
    const size_t b = static_cast<size_t>(op.rotary_interleaved ? 2 * i + 1 : i + half);
    out[a] = v[a] * c - v[b] * s;
    out[b] = v[a] * s + v[b] * c;
  }
  return out;
}

// Element [slot, head, token, d] of a paged cache, found by walking the page table.
inline size_t KvIndex(const KvView& kv, int32_t slot, int32_t head, int32_t token, int32_t d) {
  const int64_t page_tokens = kv.page_tokens;
  const int64_t page = kv.page_table[slot * kv.max_pages + token / page_tokens];
  return static_cast<size_t>(
      ((page * kv.kv_heads + head) * page_tokens + token % page_tokens) * kv.head_dim + d);
}

// Output of one query head: softmax over all visible keys at once.
inline std::vector<double> Attention(const AttentionOp& op, int64_t row, int32_t q_head) {
  const KvView& kv = op.kv;
  const RowMeta& meta = op.meta[row];
  const int32_t head = q_head / (op.q_heads / kv.kv_heads);
  const float* q = op.q + (row * op.q_heads + q_head) * kv.head_dim;
  const int32_t first = op.window > 0 ? std::max(0, meta.total - op.window) : 0;
  std::vector<double> scores;
  for (int32_t t = first; t < meta.total; ++t) {
    double dot = 0;
    for (int32_t d = 0; d < kv.head_dim; ++d) {
      dot += q[d] * Decode(kv.dtype, kv.key, KvIndex(kv, meta.slot, head, t, d));
    }
    dot *= op.scale;
    if (op.softcap > 0) dot = op.softcap * std::tanh(dot / op.softcap);
    if (op.bias != nullptr) {
      dot += op.bias[row * op.bias_row_stride + q_head * op.bias_head_stride + t];
    }
    scores.push_back(dot);
  }
  const double max = *std::max_element(scores.begin(), scores.end());
  double sum = op.head_sink == nullptr ? 0 : std::exp(op.head_sink[q_head] - max);
  for (double& s : scores) sum += s = std::exp(s - max);
  std::vector<double> out(static_cast<size_t>(kv.head_dim), 0.0);
  for (int32_t t = first; t < meta.total; ++t) {
    for (int32_t d = 0; d < kv.head_dim; ++d) {
      out[static_cast<size_t>(d)] += scores[static_cast<size_t>(t - first)] / sum *
                                     Decode(kv.dtype, kv.value, KvIndex(kv, meta.slot, head, t, d));
    }
  }
  return out;
}

// log softmax of one row's logits.
inline std::vector<double> LogSoftmax(const std::vector<double>& logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (double l : logits) sum += std::exp(l - max);
  std::vector<double> out;
  for (double l : logits) out.push_back(l - max - std::log(sum));
  return out;
}

// Bias and penalties. `history`: tokens appended so far, with kPromptBit.
inline std::vector<double> Penalised(std::vector<double> logits, const std::vector<LogitBias>& bias,
                                     const std::vector<int32_t>& history, const SlotSampling& s) {
  for (const LogitBias& b : bias) logits[static_cast<size_t>(b.token)] += b.bias;
  for (size_t id = 0; id < logits.size(); ++id) {
    int32_t generated = 0, prompt = 0;
    for (int32_t entry : history) {
      if ((entry & ~kPromptBit) != static_cast<int32_t>(id)) continue;
      ++((entry & kPromptBit) != 0 ? prompt : generated);
    }
    if (generated + prompt > 0) {
      logits[id] =
          logits[id] > 0 ? logits[id] / s.repetition_penalty : logits[id] * s.repetition_penalty;
    }
    logits[id] -= (generated > 0 ? s.presence_penalty : 0.0f) +
                  s.frequency_penalty * static_cast<float>(generated);
  }
  return logits;
}

// Probabilities after temperature and the filters, 0 for dropped tokens.
inline std::vector<double> Filtered(const std::vector<double>& logits, const SlotSampling& s) {
  std::vector<size_t> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  if (s.top_k > 0) order.resize(std::min(order.size(), static_cast<size_t>(s.top_k)));
  const auto weight = [&](size_t id) {
    return std::exp((logits[id] - logits[order[0]]) / s.temperature);
  };
  double mass = 0;
  for (size_t id : order) mass += weight(id);
  double reached = 0;
  size_t kept = 0;
  while (kept < order.size() && (kept == 0 || s.top_p >= 1 || reached < s.top_p * mass))
    reached += weight(order[kept++]);
  order.resize(kept);
  std::vector<double> p(logits.size(), 0.0);
  double total = 0;
  for (size_t id : order) {
    if (weight(id) >= s.min_p) total += p[id] = weight(id);
  }
  for (double& v : p) v /= total;
  return p;
}

}  // namespace latchd::reference
