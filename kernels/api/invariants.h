#pragma once

#include <array>
#include <cstdint>
#include <string_view>

// The one list of device invariants: bit, name and sentence, for host and device code alike. DESIGN
// section 6.

#if defined(__CUDACC__)
#define LATCHD_HOST_DEVICE __host__ __device__
#else
#define LATCHD_HOST_DEVICE
#endif

namespace latchd {

enum Invariant : uint32_t {
  kTotalOverflow = 1,
  kPastNegative = 2,
  kQueryNegative = 4,
  kPastCapacity = 8,
  kPresentCapacity = 16,
  kPosition = 32,
  kTokenRange = 64,
  kNonFinite = 128,
  kPageTable = 256,
};

struct InvariantInfo {
  Invariant bit;
  std::string_view name;
  std::string_view sentence;
};

inline constexpr std::array<InvariantInfo, 9> kInvariants = {{
    {kTotalOverflow, "TOTAL_OVERFLOW", "seqlens_k + 1 does not fit int32"},
    {kPastNegative, "PAST_NEGATIVE", "total is shorter than the current key sequence"},
    {kQueryNegative, "QUERY_NEGATIVE", "total is shorter than the current query sequence"},
    {kPastCapacity, "PAST_CAPACITY", "past length exceeds the past cache extent"},
    {kPresentCapacity, "PRESENT_CAPACITY", "valid length exceeds the present cache capacity"},
    {kPosition, "POSITION", "position is outside the rotary cache"},
    {kTokenRange, "TOKEN_RANGE", "token id is outside the vocabulary"},
    {kNonFinite, "NON_FINITE", "a logit is NaN or infinite"},
    {kPageTable, "PAGE_TABLE", "page index is outside the KV pool (internal fault)"},
}};

// The sticky error word of one slot. Set only by device code; `mask` accumulates by atomicOr, the
// other fields are written by whoever turned the mask from zero (the first violation wins; a later
// one is a consequence).
struct alignas(8) Latch {
  uint32_t mask;
  uint32_t first;  // lowest bit of the first violation: the one that value and limit describe
  int32_t layer;   // -1: before the first layer (metadata); number of layers: the logits
  int32_t row;     // row of the step's batch
  int64_t step;    // the session's step number, from StepRow::step
  int64_t value;   // offending value
  int64_t limit;   // what it was compared with
};
static_assert(sizeof(Latch) == 40);

// What the metadata op judges for one row. All lengths in tokens.
struct LengthCheck {
  int64_t seqlens_k;   // total - 1, as the client or the scheduler gave it
  int64_t k_sequence;  // new keys of this call: 1 for a step, 0 attends only
  int64_t q_sequence;  // new queries of this call: 1 for a step
  int64_t past_capacity;
  int64_t present_capacity;
  int64_t first_position;  // rotary positions used: [first_position, first_position + q_sequence)
  int64_t rotary_rows;     // 0: no rotary, positions are not judged
};

struct Verdict {
  uint32_t mask = 0;
  uint32_t first = 0;
  int64_t value = 0;
  int64_t limit = 0;

  LATCHD_HOST_DEVICE void Fail(uint32_t bit, int64_t bad_value, int64_t bound) {
    if (mask == 0) {
      first = bit;
      value = bad_value;
      limit = bound;
    }
    mask |= bit;
  }
};

// Judges the bits 1..32. Values are never clamped: a row that fails is skipped by every later
// kernel.
LATCHD_HOST_DEVICE inline Verdict CheckLengths(const LengthCheck& c) {
  Verdict v;
  const int64_t total = c.seqlens_k + 1;
  const int64_t past = total - c.k_sequence;
  const int64_t query_start = total - c.q_sequence;
  if (total > INT32_MAX) v.Fail(kTotalOverflow, total, INT32_MAX);
  if (past < 0) v.Fail(kPastNegative, total, c.k_sequence);
  if (query_start < 0) v.Fail(kQueryNegative, total, c.q_sequence);
  if (past > c.past_capacity) v.Fail(kPastCapacity, past, c.past_capacity);
  if (total > c.present_capacity) v.Fail(kPresentCapacity, total, c.present_capacity);
  if (c.rotary_rows > 0) {
    const int64_t last = c.first_position + c.q_sequence - 1;
    if (c.first_position < 0) {
      v.Fail(kPosition, c.first_position, c.rotary_rows);
    } else if (last >= c.rotary_rows) {
      v.Fail(kPosition, last, c.rotary_rows);
    }
  }
  return v;
}

}  // namespace latchd
