#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "kernels/cpu/ops_internal.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/sample_internal.h"

namespace latchd::cpu {
namespace {

// In a count: the token occurs in the prompt. The low bits count how often it was generated.
constexpr int32_t kSeenInPrompt = 1 << 30;

void AddBias(const SampleOp& op, int32_t slot, const SlotSampling& sampling, float* logits) {
  const LogitBias* bias = op.tables.bias + static_cast<size_t>(slot) * kMaxLogitBias;
  for (int32_t i = 0; i < std::min(sampling.bias_count, kMaxLogitBias); ++i) {
    if (bias[i].token >= 0 && bias[i].token < op.vocab) logits[bias[i].token] += bias[i].bias;
  }
}

// Repetition penalty (Keskar et al. 2019, as in Hugging Face transformers) over every token of the
// history, then presence and frequency penalty (OpenAI's formula) over generated ones. counts
// [vocab] is zero before and after: the first pass counts, the second applies each token once and
// clears it, so nothing of the size of the vocabulary is touched.
void Penalise(const SampleOp& op, const RowMeta& meta, const SlotSampling& s, float* logits,
              int32_t* counts) {
  if (s.repetition_penalty == 1.0f && s.presence_penalty == 0.0f && s.frequency_penalty == 0.0f)
    return;
  const auto token_at = [&](int32_t t) { return *op.tables.History(meta.slot, t); };
  const auto id_of = [&](int32_t entry) { return entry & ~kPromptBit; };
  for (int32_t t = 0; t < meta.total; ++t) {
    const int32_t entry = token_at(t);
    if (entry < 0 || id_of(entry) >= op.vocab) continue;
    int32_t& count = counts[id_of(entry)];
    count = (entry & kPromptBit) != 0 ? count | kSeenInPrompt : count + 1;
  }
  for (int32_t t = 0; t < meta.total; ++t) {
    const int32_t entry = token_at(t);
    if (entry < 0 || id_of(entry) >= op.vocab) continue;
    const int32_t count = counts[id_of(entry)];
    if (count == 0) continue;  // applied already
    counts[id_of(entry)] = 0;
    float& logit = logits[id_of(entry)];
    logit = logit > 0.0f ? logit / s.repetition_penalty : logit * s.repetition_penalty;
    const int32_t generated = count & ~kSeenInPrompt;
    if (generated > 0)
      logit -= s.presence_penalty + s.frequency_penalty * static_cast<float>(generated);
  }
}

int32_t Choose(const SampleOp& op, const RowMeta& meta, const SlotSampling& s, const float* logits,
               float max, int32_t* ids) {
  if (!(s.temperature > 0.0f))
    return static_cast<int32_t>(std::find(logits, logits + op.vocab, max) - logits);
  if (!HasFilters(s, op.vocab))
    return GumbelArgmax(logits, op.vocab, s.temperature, s.seed, meta.past);
  const int32_t kept = FilterTokens(logits, op.vocab, s, max, ids);
  const int32_t token = GumbelArgmaxOf(logits, ids, kept, s.temperature, s.seed, meta.past);
  std::memset(ids, 0, static_cast<size_t>(op.vocab) * sizeof(int32_t));
  return token;
}

// Fills top_token and top_logprob, descending, ties to the lowest id.
void FillTop(const float* logits, int32_t vocab, int32_t wanted, float log_normaliser,
             RowResult& result) {
  wanted = std::clamp(wanted, 0, std::min(kMaxTopLogprobs, vocab));
  int32_t* top = result.top_token;
  int32_t count = 0;
  for (int32_t id = 0; id < vocab && wanted > 0; ++id) {
    if (count == wanted && logits[id] <= logits[top[count - 1]]) continue;
    int32_t at = count < wanted ? count++ : count - 1;
    for (; at > 0 && logits[id] > logits[top[at - 1]]; --at) top[at] = top[at - 1];
    top[at] = id;
  }
  for (int32_t i = 0; i < count; ++i) result.top_logprob[i] = logits[top[i]] - log_normaliser;
  result.top_count = count;
}

// Samples one live row into its result; a bad logit latches instead and leaves the slot as it was.
void SampleRow(const SampleOp& op, int32_t row, int32_t* counts, int32_t* ids, RowResult& result) {
  const RowMeta& meta = op.meta[row];
  float* logits = op.logits + static_cast<size_t>(row) * static_cast<size_t>(op.vocab);
  // Judged before the bias, so that what a client asks for cannot poison its session.
  if (const int32_t bad = FirstNonFinite(logits, op.vocab); bad >= 0) {
    op.tables.LatchOf(meta.slot) = {.mask = kNonFinite,
                                    .first = kNonFinite,
                                    .layer = op.layers,
                                    .row = row,
                                    .step = op.inputs[row].step,
                                    .value = bad,
                                    .limit = op.vocab};
    return;
  }
  const SlotSampling& sampling = op.tables.sampling[meta.slot];
  AddBias(op, meta.slot, sampling, logits);
  Penalise(op, meta, sampling, logits, counts);
  const float max = MaxLogit(logits, op.vocab);
  const int32_t token = Choose(op, meta, sampling, logits, max, ids);
  const float log_normaliser =
      max + static_cast<float>(std::log(SumExp(logits, op.vocab, max, 1.0f)));
  result.token = token;
  result.logprob = logits[token] - log_normaliser;
  FillTop(logits, op.vocab, sampling.top_logprobs, log_normaliser, result);
  op.tables.next_token[meta.slot] = token;
}

}  // namespace

// counts [rows, vocab], then candidate ids [rows, vocab].
size_t SampleWorkspaceBytes(const SampleOp& op) {
  return 2 * static_cast<size_t>(op.rows) * static_cast<size_t>(op.vocab) * sizeof(int32_t);
}

OpStatus Sample(const SampleOp& op, OpStream) {
  if (op.vocab <= 0)
    return Invalid("sample: vocab must be positive, got " + std::to_string(op.vocab));
  const size_t needed = SampleWorkspaceBytes(op);
  if (op.workspace_bytes < needed) return WorkspaceTooSmall("sample", needed, op.workspace_bytes);
  auto* counts = static_cast<int32_t*>(op.workspace);
  int32_t* ids = counts + static_cast<size_t>(op.rows) * static_cast<size_t>(op.vocab);

  ParallelItems(op.rows, int64_t{op.rows} * op.vocab * 4, MaxThreads(), [&](int64_t item, int) {
    const int32_t row = static_cast<int32_t>(item);
    const size_t at = static_cast<size_t>(row) * static_cast<size_t>(op.vocab);
    const RowMeta& meta = op.meta[row];
    const int32_t slot = op.inputs[row].slot;
    RowResult& result = op.results[row];
    result.token = -1;
    result.logprob = 0.0f;
    result.top_count = 0;
    if (meta.slot >= 0 && (meta.flags & kRowSample) != 0)
      SampleRow(op, row, counts + at, ids + at, result);
    result.latch = slot >= 0 && slot < op.tables.slots ? op.tables.LatchOf(slot) : Latch{};
    // Last, so that a host that sees the number sees the record.
    std::atomic_ref<int64_t>(result.sequence).store(op.header->sequence, std::memory_order_release);
  });
  return OpStatus::Ok();
}

}  // namespace latchd::cpu
