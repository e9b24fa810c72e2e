#include "runtime/sched/step_runner.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "runtime/sched/batch_former.h"

namespace latchd {
namespace {

// After this long without a result the loop stops polling and asks the device, which reports a
// fault if there is one.
constexpr auto kPollLimit = std::chrono::milliseconds(200);

constexpr StepRow kInactiveRow = {kInactive, kTokenFromSlot, 0, 0, 0, 0};

}  // namespace

StepRunner::StepRunner(const TransformerWeights& weights, KvCache& kv, Device& device,
                       int32_t max_rows)
    : weights_(weights),
      kv_(kv),
      device_(device),
      builder_(weights, kv, device),
      buckets_(MakeBuckets(max_rows)),
      graphs_(device, buckets_.size()) {
  for (const int32_t rows : buckets_) signatures_.push_back(MakeSignature(rows));
}

absl::StatusOr<std::unique_ptr<StepRunner>> StepRunner::Create(const TransformerWeights& weights,
                                                               KvCache& kv, Device& device,
                                                               int32_t max_rows,
                                                               int32_t prefill_chunk) {
  auto runner = std::unique_ptr<StepRunner>(new StepRunner(weights, kv, device, max_rows));
  struct Wanted {
    std::unique_ptr<Activations>* buffers;
    int32_t rows, logit_rows;
    Phase phase;
  };
  const Wanted wanted[] = {{&runner->decode_, max_rows, max_rows, Phase::kDecode},
                           {&runner->prefill_, prefill_chunk, 1, Phase::kPrefill}};
  for (const Wanted& want : wanted) {
    auto buffers =
        Activations::Create(weights.config(), weights.dtype(), want.rows, want.logit_rows, device);
    if (!buffers.ok()) return buffers.status();
    *want.buffers = *std::move(buffers);
    if (absl::Status status = runner->builder_.AllocateWorkspaces(**want.buffers, want.phase);
        !status.ok()) {
      return status;
    }
  }
  return runner;
}

const Signature& StepRunner::SignatureFor(int32_t rows) const {
  const auto bucket = std::lower_bound(buckets_.begin(), buckets_.end(), rows);
  return signatures_[static_cast<size_t>(bucket - buckets_.begin())];
}

// What a graph over these buffers bakes in. Nothing in it changes after construction, so each
// bucket's is made once: a step must not build strings.
Signature StepRunner::MakeSignature(int32_t rows) const {
  const ModelConfig& config = weights_.config();
  const KvLayout& layout = kv_.layout();
  return {.backend = device_.info().backend,
          .dtype = weights_.dtype(),
          .rows = rows,
          .q_sequence = 1,
          .k_sequence = 1,
          .layers = static_cast<int32_t>(config.layers),
          .hidden = static_cast<int32_t>(config.hidden),
          .q_heads = static_cast<int32_t>(config.q_heads),
          .kv_heads = static_cast<int32_t>(config.kv_heads),
          .head_dim = static_cast<int32_t>(config.head_dim),
          .feed_forward = static_cast<int32_t>(config.feed_forward),
          .vocab = static_cast<int32_t>(config.vocab),
          .past_capacity = layout.max_capacity_tokens,
          .present_capacity = layout.max_capacity_tokens,
          .page_tokens = kPageTokens,
          .pool_pages = layout.pool_pages,
          .rotary_rows = static_cast<int32_t>(weights_.rotary_rows()),
          .window = static_cast<int32_t>(config.sliding_window),
          .packed_qkv = true};
}

// All buckets are captured before the daemon is ready: a capture during traffic would stop every
// session for it, and could fail when a client is waiting. It runs on the scratch slot, which
// belongs to nobody.
absl::Status StepRunner::CaptureAll(const std::function<void(int64_t, int64_t)>& progress) {
  for (size_t i = 0; i < buckets_.size(); ++i) {
    const int32_t rows = buckets_[i];
    const Signature& signature = SignatureFor(rows);
    const StepProgram program = builder_.Decode(*decode_, rows);
    const GraphCache::Launch launch = [&](Device& device) { return Submit(program, device); };
    // Rows of one slot would race on its latch and history, so only the first row runs; the others
    // are inactive, as in a partly filled bucket.
    std::fill_n(decode_->rows(), rows, kInactiveRow);
    decode_->rows()[0] = {KvCache::kScratchSlot, 0, 0, kRowSample, 0, 0};
    decode_->header().sequence = ++sequence_;
    if (absl::Status status = graphs_.Warm(signature, launch); !status.ok()) return status;
    // Made anew, so that the cache compares what is recorded now with what was warmed.
    if (absl::Status status = graphs_.Capture(signature, MakeSignature(rows), launch); !status.ok())
      return status;
    if (progress) progress(static_cast<int64_t>(i) + 1, static_cast<int64_t>(buckets_.size()));
  }
  return device_.Synchronize();
}

// Fills the pinned buffer that the graph's first node uploads, and returns the bucket. Writing it
// needs no wait for the device: the previous step's results have been read, so its upload is over.
// Rows that fill up the bucket are inactive and skipped by every op.
int32_t StepRunner::WriteDecodeInputs(const std::vector<StepRow>& rows) {
  const int32_t bucket = BucketFor(buckets_, static_cast<int32_t>(rows.size()));
  std::copy(rows.begin(), rows.end(), decode_->rows());
  std::fill(decode_->rows() + rows.size(), decode_->rows() + bucket, kInactiveRow);
  decode_->header().sequence = ++sequence_;
  return bucket;
}

absl::StatusOr<const RowResult*> StepRunner::Decode(const std::vector<StepRow>& rows) {
  const int32_t bucket = WriteDecodeInputs(rows);
  if (absl::Status status = graphs_.Replay(SignatureFor(bucket)); !status.ok()) return status;
  if (absl::Status status = AwaitResults(*decode_, bucket); !status.ok()) return status;
  return decode_->results.data<RowResult>();
}

absl::StatusOr<const RowResult*> StepRunner::DecodeEager(const std::vector<StepRow>& rows) {
  const int32_t bucket = WriteDecodeInputs(rows);
  if (absl::Status status = Submit(builder_.Decode(*decode_, bucket), device_); !status.ok())
    return status;
  if (absl::Status status = AwaitResults(*decode_, bucket); !status.ok()) return status;
  return decode_->results.data<RowResult>();
}

// A prompt chunk runs eagerly: its row count differs from call to call, so a graph would rarely
// fit, and its ops are long enough to hide their launches.
absl::StatusOr<const RowResult*> StepRunner::Prefill(const std::vector<StepRow>& rows,
                                                     bool sample) {
  const int32_t count = static_cast<int32_t>(rows.size());
  std::copy(rows.begin(), rows.end(), prefill_->rows());
  prefill_->header().sequence = ++sequence_;
  if (absl::Status status = Submit(builder_.Prefill(*prefill_, count, sample), device_);
      !status.ok())
    return status;
  if (!sample) {
    // Nothing is published without sampling, and the next chunk overwrites the pinned inputs, so
    // this one has to be over.
    if (absl::Status status = device_.Synchronize(); !status.ok()) return status;
    return nullptr;
  }
  if (absl::Status status = AwaitResults(*prefill_, 1); !status.ok()) return status;
  return prefill_->results.data<RowResult>();
}

// Results come back without a call into the driver: the last op writes each row's record into
// host-visible memory and its sequence number last, with release order. The host spins on that
// number with acquire order, so the record is whole when the number is there. `sequence_` rises
// with every step, so what an earlier step left cannot be taken for this one's. Inactive rows
// publish too.
absl::Status StepRunner::AwaitResults(const Activations& buffers, int32_t rows) {
  RowResult* results = buffers.results.data<RowResult>();
  const auto start = std::chrono::steady_clock::now();
  for (int32_t row = 0; row < rows; ++row) {
    int64_t polls = 0;
    while (__atomic_load_n(&results[row].sequence, __ATOMIC_ACQUIRE) != sequence_) {
      // The clock is read now and then only: reading it costs more than a poll.
      if (++polls % 1024 != 0 || std::chrono::steady_clock::now() - start < kPollLimit) continue;
      // Slow or broken? Synchronize returns when the step is over, or with the fault. A record that
      // is missing even then will never come.
      if (absl::Status status = device_.Synchronize(); !status.ok()) return status;
      if (__atomic_load_n(&results[row].sequence, __ATOMIC_ACQUIRE) == sequence_) break;
      return absl::InternalError(
          absl::StrCat("step ", sequence_, " ended without a result for row ", row));
    }
  }
  return absl::OkStatus();
}

// REQUIRES: no step since the one whose logits are wanted; its buffers are shared by all.
absl::Status StepRunner::ReadLogits(const Activations& buffers, int32_t row,
                                    std::vector<float>& out) {
  const int64_t vocab = weights_.config().vocab;
  out.resize(vocab);
  return device_.Download(out.data(), buffers.logits.data<float>() + row * vocab,
                          vocab * sizeof(float));
}

absl::Status StepRunner::ReadDecodeLogits(int32_t row, std::vector<float>& out) {
  return ReadLogits(*decode_, row, out);
}

absl::Status StepRunner::ReadPrefillLogits(std::vector<float>& out) {
  return ReadLogits(*prefill_, 0, out);
}

}  // namespace latchd
