// The part of AttentionSession that keeps and moves its caches.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "runtime/attention/attention_session.h"

namespace latchd {
namespace {

// "PAST_NEGATIVE: total is shorter than the current key sequence (3, limit 5)"
std::string Describe(const Verdict& verdict) {
  for (const InvariantInfo& invariant : kInvariants) {
    if (invariant.bit != verdict.first) continue;
    return absl::StrCat(std::string(invariant.name), ": ", std::string(invariant.sentence), " (",
                        verdict.value, ", limit ", verdict.limit, ")");
  }
  return "";
}

}  // namespace

absl::Status AttentionSession::CheckLengthsOnHost(const AttentionCall& call) const {
  const AttentionConfig& c = *config_;
  const int64_t past_capacity = call.past_tokens > 0 ? call.past_tokens : c.capacity_tokens;
  for (int64_t b = 0; b < c.batch; ++b) {
    const int32_t seqlens_k = call.seqlens_k[static_cast<size_t>(b)];
    const Verdict verdict =
        CheckLengths({.seqlens_k = seqlens_k,
                      .k_sequence = call.kv_sequence,
                      .q_sequence = call.q_sequence,
                      .past_capacity = past_capacity,
                      .present_capacity = c.capacity_tokens,
                      .first_position = int64_t{seqlens_k} + 1 - call.q_sequence,
                      .rotary_rows = c.explicit_positions ? 0 : c.rotary_rows});
    if (verdict.mask != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("seqlens_k[", b, "] = ", seqlens_k, ": ", Describe(verdict)));
    }
  }
  for (size_t i = 0; c.do_rotary && i < call.position_ids.size(); ++i) {
    const int64_t position = call.position_ids[i];
    if (position < 0 || position >= c.rotary_rows) {
      return absl::InvalidArgumentError(absl::StrCat("position_ids[", i, "]: expected 0..",
                                                     c.rotary_rows - 1, ", got ", position));
    }
  }
  return absl::OkStatus();
}

// The layer's caches become past_key and past_value with a zero-filled tail.
absl::Status AttentionSession::WritePast(const AttentionCall& call) {
  const AttentionConfig& c = *config_;
  const size_t token = static_cast<size_t>(c.head_size) * SizeOf(c.dtype);
  const size_t from = static_cast<size_t>(call.past_tokens) * token;
  const size_t to = static_cast<size_t>(c.capacity_tokens) * token;
  const size_t heads = static_cast<size_t>(c.batch * c.kv_num_heads);
  for (auto [cache, past] :
       {std::pair(&key_, call.past_key), std::pair(&value_, call.past_value)}) {
    char* layer = cache->data<char>() + static_cast<size_t>(call.layer) * heads * to;
    if (absl::Status status = device_.Fill(layer, 0, heads * to); !status.ok()) return status;
    for (size_t h = 0; h < heads; ++h) {
      if (absl::Status status = device_.Upload(layer + h * to, past.data() + h * from, from);
          !status.ok()) {
        return status;
      }
    }
  }
  return absl::OkStatus();
}

absl::Status AttentionSession::ClearLatch() {
  if (absl::Status status = device_.Fill(latch_.data(), 0, latch_.bytes()); !status.ok())
    return status;
  violation_.reset();
  return absl::OkStatus();
}

absl::Status AttentionSession::Truncate(int64_t length) {
  for (int64_t& own : lengths_) own = std::min(own, length);
  return ClearLatch();
}

absl::Status AttentionSession::CopyFrom(const AttentionSession& other) {
  std::string bytes;
  for (auto [to, from] : {std::pair(&key_, &other.key_), std::pair(&value_, &other.value_)}) {
    bytes.resize(from->bytes());
    if (absl::Status status = device_.Download(bytes.data(), from->data(), bytes.size());
        !status.ok()) {
      return status;
    }
    if (absl::Status status = device_.Upload(to->data(), bytes.data(), bytes.size()); !status.ok())
      return status;
  }
  lengths_ = other.lengths_;
  steps_ = other.steps_;
  return absl::OkStatus();
}

absl::Status AttentionSession::ReadLayer(int64_t layer, std::string& key,
                                         std::string& value) const {
  const AttentionConfig& c = *config_;
  const size_t bytes = key_.bytes() / static_cast<size_t>(c.layers);
  const size_t token = static_cast<size_t>(c.head_size) * SizeOf(c.dtype);
  const size_t head = static_cast<size_t>(c.capacity_tokens) * token;
  for (auto [cache, out] : {std::pair(&key_, &key), std::pair(&value_, &value)}) {
    out->resize(bytes);
    const char* from = cache->data<char>() + static_cast<size_t>(layer) * bytes;
    if (absl::Status status = device_.Download(out->data(), from, bytes); !status.ok())
      return status;
    for (int64_t b = 0; b < c.batch; ++b) {
      const size_t valid =
          static_cast<size_t>(lengths_[static_cast<size_t>(layer * c.batch + b)]) * token;
      for (int64_t h = 0; h < c.kv_num_heads; ++h) {
        const size_t begin = static_cast<size_t>(b * c.kv_num_heads + h) * head;
        std::fill(out->begin() + static_cast<int64_t>(begin + valid),
                  out->begin() + static_cast<int64_t>(begin + head), '\0');
      }
    }
  }
  return absl::OkStatus();
}

absl::Status AttentionSession::WriteLayer(int64_t layer, std::string_view key,
                                          std::string_view value) {
  const size_t at = static_cast<size_t>(layer) * key.size();
  if (absl::Status status = device_.Upload(key_.data<char>() + at, key.data(), key.size());
      !status.ok()) {
    return status;
  }
  return device_.Upload(value_.data<char>() + at, value.data(), value.size());
}

}  // namespace latchd
