#pragma once

#include <cstdint>

#include "kernels/api/invariants.h"

// The device tables through which everything that differs between sessions and steps reaches a
// captured graph. Their addresses are fixed for the life of the engine; only their contents change.
// Plain data, the same on host and device.

namespace latchd {

inline constexpr int32_t kInactive =
    -1;  // StepRow::slot of an unused row; every RowMeta field of a skipped row
inline constexpr int32_t kTokenFromSlot =
    -1;  // StepRow::token: append the token the slot sampled last
inline constexpr int32_t kPromptBit =
    1 << 30;  // in token history: the token came from a prompt or was forced
inline constexpr int32_t kMaxTopLogprobs = 20;
inline constexpr int32_t kMaxLogitBias = 256;

// StepRow::flags
inline constexpr uint32_t kRowSample =
    1;  // run sampling for this row (every decode row; the last row of a prompt)
inline constexpr uint32_t kRowPrompt = 2;  // mark the token as prompt in the history
inline constexpr uint32_t kRowExplicitPosition =
    4;  // rotate by `position` instead of the implicit query start
inline constexpr uint32_t kRowAttendOnly = 8;  // the row's key and value are not appended

// Written by the host before each replay, one per row: a decode step has one row per session, a
// prefill chunk one row per prompt token (all of the same slot, seqlens_k rising by one).
struct alignas(8) StepRow {
  int32_t slot;       // row of the slot tables, or kInactive
  int32_t token;      // token to append, or kTokenFromSlot
  int32_t seqlens_k;  // total - 1: the index at which this row's token is appended
  uint32_t flags;
  int64_t position;  // used with kRowExplicitPosition
  int64_t step;      // the session's step number, reported by the latch
};
static_assert(sizeof(StepRow) == 32);

// What the metadata op resolved for one row. A row that is inactive, poisoned or violated has every
// field -1, and every later op skips it: no KV write, no output.
struct RowMeta {
  int32_t slot;
  int32_t token;     // resolved and in range
  int32_t past;      // index at which this row's K/V is written; total when it only attends
  int32_t total;     // valid KV length for this row's query, its own token included
  int32_t position;  // rotary position
  uint32_t flags;    // of the StepRow; 0 when skipped
};

struct LogitBias {
  int32_t token;
  float bias;  // added to the logit before temperature
};

// Sampling state of one slot. The random draw depends only on (seed, past, token id), never on what
// else runs.
struct alignas(8) SlotSampling {
  float temperature;         // 0: greedy, ties to the lowest id
  float top_p;               // 1: off
  float min_p;               // 0: off
  float repetition_penalty;  // 1: off; over prompt and generated tokens
  float presence_penalty;    // 0: off; over generated tokens
  float frequency_penalty;   // 0: off; over generated tokens
  int32_t top_k;             // 0: off
  int32_t top_logprobs;      // 0..kMaxTopLogprobs alternatives to report
  uint64_t seed;
  int32_t bias_count;
  int32_t reserved;
};

struct SlotTables {
  Latch* latch;            // [slots], or one for all of them: see latch_stride
  int32_t* next_token;     // [slots] token sampled last
  int32_t* capacity;       // [slots] tokens the slot may hold
  int32_t* page_table;     // [slots, max_pages]
  SlotSampling* sampling;  // [slots]
  LogitBias* bias;         // [slots, kMaxLogitBias]
  int32_t* history;        // [pool_pages, page_tokens] appended tokens, paged like the KV cache
  int32_t slots;
  int32_t max_pages;
  int32_t pool_pages;
  int32_t page_shift;
  int32_t page_tokens;
  int32_t latch_stride = 1;  // 0: the slots share one latch, judged as it was before the call

  LATCHD_HOST_DEVICE Latch& LatchOf(int32_t slot) const { return latch[slot * latch_stride]; }
  LATCHD_HOST_DEVICE int32_t* History(int32_t slot, int32_t token_index) const {
    const int32_t page =
        page_table[static_cast<int64_t>(slot) * max_pages + (token_index >> page_shift)];
    return history + static_cast<int64_t>(page) * page_tokens +
           (token_index & static_cast<int32_t>((1u << page_shift) - 1));
  }
};

// Result of one row, in memory that the host can read while the device runs. `sequence` is written
// last, with release order at system scope, so a host that reads the expected value sees the whole
// record.
struct alignas(8) RowResult {
  int64_t sequence;  // StepInputsHeader::sequence of the replay that wrote it
  int32_t token;     // sampled, or -1 when the row was skipped
  float logprob;  // natural log, of the distribution after penalties and bias, before temperature
                  // and filters
  Latch latch;    // copy of the slot's latch after the step; mask 0: the step is applied
  int32_t top_count;
  int32_t reserved;
  int32_t top_token[kMaxTopLogprobs];
  float top_logprob[kMaxTopLogprobs];  // descending
};

// Head of the step-input buffer that a graph's first node uploads; StepRow[rows] follows it.
struct alignas(8) StepInputsHeader {
  int64_t sequence;  // rises by one per replay
  int64_t reserved;
};

}  // namespace latchd
