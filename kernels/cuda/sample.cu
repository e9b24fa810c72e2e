#include <string>

#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/ops_internal.h"
#include "kernels/cuda/sample_select.cuh"

// Sampling: a cluster of 8 blocks a row. A greedy row without bias or penalties is one pass over
// the logits; filters add radix selections.

namespace latchd::cuda {
namespace {

// In a count: the token occurs in the prompt. The low bits count how often it was generated.
constexpr int32_t kSeenInPrompt = 1 << 30;

__device__ bool HasPenalties(const SlotSampling& s) {
  return s.repetition_penalty != 1.0f || s.presence_penalty != 0.0f || s.frequency_penalty != 0.0f;
}

// One thread an entry; the first entry of a token adds all of that token's, in order.
__device__ void AddBias(const SampleOp& op, int32_t slot, int32_t count, float* logits) {
  const LogitBias* bias = op.tables.bias + static_cast<int64_t>(slot) * kMaxLogitBias;
  const int32_t i = static_cast<int32_t>(threadIdx.x);
  if (i >= count) return;
  const int32_t token = bias[i].token;
  if (token < 0 || token >= op.vocab) return;
  for (int32_t j = 0; j < i; ++j) {
    if (bias[j].token == token) return;
  }
  float logit = __ldcg(logits + token);
  for (int32_t j = i; j < count; ++j) {
    if (bias[j].token == token) logit += bias[j].bias;
  }
  logits[token] = logit;
}

// Repetition penalty (Keskar et al. 2019, as in Hugging Face transformers) over every token of the
// history, then presence and frequency penalty (OpenAI's formula) over generated ones. counts
// [vocab] is zero before and after: whoever takes a token's count out applies it, once.
__device__ void Penalise(const SampleOp& op, Cluster& cluster, const RowMeta& meta,
                         const SlotSampling& s, float* logits, int32_t* counts) {
  for (int32_t t = cluster.thread(); t < meta.total; t += kClusterThreads) {
    const int32_t entry = *op.tables.History(meta.slot, t), id = entry & ~kPromptBit;
    if (entry < 0 || id >= op.vocab) continue;
    if ((entry & kPromptBit) != 0) {
      atomicOr(counts + id, kSeenInPrompt);
    } else {
      atomicAdd(counts + id, 1);
    }
  }
  __threadfence();
  cluster.Sync();
  for (int32_t t = cluster.thread(); t < meta.total; t += kClusterThreads) {
    const int32_t entry = *op.tables.History(meta.slot, t), id = entry & ~kPromptBit;
    if (entry < 0 || id >= op.vocab) continue;
    const int32_t count = atomicExch(counts + id, 0);
    if (count == 0) continue;  // applied already
    float logit = __ldcg(logits + id);
    logit = logit > 0.0f ? logit / s.repetition_penalty : logit * s.repetition_penalty;
    const int32_t generated = count & ~kSeenInPrompt;
    if (generated > 0)
      logit -= s.presence_penalty + s.frequency_penalty * static_cast<float>(generated);
    logits[id] = logit;
  }
}

__device__ int32_t Choose(Cluster& cluster, const float* logits, int32_t vocab,
                          const LogitStats& stats, const SlotSampling& s, int32_t past) {
  if (!(s.temperature > 0.0f)) return stats.argmax;
  Cutoff kept;
  if (s.top_k > 0 && s.top_k < vocab) kept = SelectTopK(cluster, logits, vocab, s.top_k);
  if (s.top_p < 1.0f)
    kept = SelectTopP(cluster, logits, vocab, kept, stats.max, s.temperature, s.top_p);
  return DrawToken(cluster, logits, vocab, kept, stats.max, s, past);
}

// Every thread of the cluster calls it; `writer` alone writes.
__device__ void SampleRow(const SampleOp& op, Cluster& cluster, int32_t r, const RowMeta& meta,
                          bool writer, RowResult* result) {
  float* logits = op.logits + static_cast<size_t>(r) * op.vocab;
  LogitStats stats = ReadStats(cluster, logits, op.vocab);
  // Judged before the bias, so that what a client asks for cannot poison its session.
  if (stats.non_finite != INT32_MAX) {
    if (writer) {
      op.tables.LatchOf(meta.slot) = {kNonFinite,        kNonFinite,       op.layers, r,
                                      op.inputs[r].step, stats.non_finite, op.vocab};
    }
    return;
  }
  const SlotSampling s = op.tables.sampling[meta.slot];
  const int32_t bias_count = min(s.bias_count, kMaxLogitBias);
  if (bias_count > 0 || HasPenalties(s)) {
    if (bias_count > 0 && cluster.rank() == 0) AddBias(op, meta.slot, bias_count, logits);
    __threadfence();
    cluster.Sync();
    if (HasPenalties(s)) {
      Penalise(op, cluster, meta, s, logits,
               static_cast<int32_t*>(op.workspace) + static_cast<size_t>(r) * op.vocab);
      __threadfence();
      cluster.Sync();
    }
    stats = ReadStats(cluster, logits, op.vocab);
  }
  const int32_t token = Choose(cluster, logits, op.vocab, stats, s, meta.past);
  const float log_normaliser = stats.max + logf(stats.sum);
  if (writer) {
    result->token = token;
    result->logprob = __ldcg(logits + token) - log_normaliser;
    op.tables.next_token[meta.slot] = token;
  }
  const int32_t wanted = min(max(s.top_logprobs, 0), min(kMaxTopLogprobs, op.vocab));
  Candidate previous = {INFINITY, -1, {0, 0}};
  for (int32_t i = 0; i < wanted; ++i) {
    previous = NextBest(cluster, logits, op.vocab, previous);
    if (writer) {
      result->top_token[i] = previous.token;
      result->top_logprob[i] = previous.score - log_normaliser;
    }
  }
  if (writer) result->top_count = wanted;
}

__global__ void __cluster_dims__(kClusterBlocks, 1, 1) __launch_bounds__(kClusterBlockThreads)
    SampleKernel(const __grid_constant__ SampleOp op) {
  __shared__ ClusterScratch scratch;
  WaitForPrevious();
  AllowNext();
  Cluster cluster(scratch);
  const int32_t r = static_cast<int32_t>(blockIdx.y);
  const RowMeta meta = op.meta[r];
  const int32_t slot = op.inputs[r].slot;
  const bool writer = cluster.thread() == 0;
  RowResult* result = op.results + r;
  if (writer) {
    result->token = -1;
    result->logprob = 0.0f;
    result->top_count = 0;
  }
  if (meta.slot >= 0 && (meta.flags & kRowSample) != 0)
    SampleRow(op, cluster, r, meta, writer, result);
  if (writer) {
    result->latch = slot >= 0 && slot < op.tables.slots ? op.tables.LatchOf(slot) : Latch{};
    // Last, with release order at system scope: a host that sees the number sees the record.
    __threadfence_system();
    asm volatile("st.release.sys.global.s64 [%0], %1;" ::"l"(&result->sequence),
                 "l"(op.header->sequence)
                 : "memory");
  }
  cluster.Sync();  // no block leaves while another may read its shared memory
}

}  // namespace

// counts [rows, vocab] for the penalties.
size_t SampleWorkspaceBytes(const SampleOp& op) {
  return static_cast<size_t>(op.rows) * static_cast<size_t>(op.vocab) * sizeof(int32_t);
}

OpStatus Sample(const SampleOp& op, OpStream stream) {
  if (op.rows <= 0) return OpStatus::Ok();
  if (op.vocab <= 0)
    return Invalid("sample: vocab must be positive, got " + std::to_string(op.vocab));
  if (const size_t need = SampleWorkspaceBytes(op); need > op.workspace_bytes) {
    return WorkspaceTooSmall("sample", need, op.workspace_bytes);
  }
  return Launch("sample", SampleKernel, dim3(kClusterBlocks, static_cast<unsigned>(op.rows)),
                dim3(kClusterBlockThreads), 0, stream, LaunchOrder::kAfterPrevious, op);
}

OpStatus InitSample() { return Prepare("sample", SampleKernel); }

}  // namespace latchd::cuda
