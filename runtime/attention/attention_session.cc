#include "runtime/attention/attention_session.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/api/convert.h"

namespace latchd {
namespace {

constexpr size_t kLatchBytes = 64;  // keeps what follows it aligned

int64_t Heads(const AttentionConfig& c) { return c.num_heads + 2 * c.kv_num_heads; }

size_t CacheBytes(const AttentionConfig& c) {
  return static_cast<size_t>(c.layers * c.batch * c.kv_num_heads * c.capacity_tokens *
                             c.head_size) *
         SizeOf(c.dtype);
}

}  // namespace

size_t AttentionSession::DeviceBytes(const AttentionConfig& config) {
  return 2 * CacheBytes(config) + (config.cos_cache.size() + config.sin_cache.size()) * 4;
}

absl::StatusOr<std::unique_ptr<AttentionSession>> AttentionSession::Create(
    std::shared_ptr<const AttentionConfig> config, Device& device) {
  std::unique_ptr<AttentionSession> session(new AttentionSession(std::move(config), device));
  if (absl::Status status = session->Allocate(); !status.ok()) return status;
  if (absl::Status status = session->Capture(); !status.ok()) return status;
  return session;
}

absl::Status AttentionSession::Allocate() {
  const AttentionConfig& c = *config_;
  const auto allocate = [&](Buffer& buffer, size_t bytes) {
    auto made = device_.Allocate(bytes, MemoryKind::kDevice, "attention");
    if (!made.ok()) return made.status();
    buffer = *std::move(made);
    return absl::OkStatus();
  };
  const auto upload = [&](Buffer& buffer, const std::vector<float>& values) {
    if (values.empty()) return absl::OkStatus();
    if (absl::Status status = allocate(buffer, values.size() * sizeof(float)); !status.ok())
      return status;
    return device_.Upload(buffer.data(), values.data(), values.size() * sizeof(float));
  };
  if (absl::Status status = allocate(key_, CacheBytes(c)); !status.ok()) return status;
  if (absl::Status status = allocate(value_, CacheBytes(c)); !status.ok()) return status;
  if (absl::Status status = upload(cos_, c.cos_cache); !status.ok()) return status;
  if (absl::Status status = upload(sin_, c.sin_cache); !status.ok()) return status;
  std::vector<float> sink = c.head_sink;
  if (c.smooth_softmax && sink.empty()) sink.assign(static_cast<size_t>(c.num_heads), 0.0f);
  if (absl::Status status = upload(sink_, sink); !status.ok()) return status;
  if (absl::Status status = AllocateTables(); !status.ok()) return status;
  return Grow(step_, c.batch, Phase::kDecode);
}

absl::Status AttentionSession::AllocateTables() {
  const size_t slots = static_cast<size_t>(config_->layers * config_->batch);
  lengths_.assign(slots, 0);
  const std::vector<int32_t> capacity(slots, static_cast<int32_t>(config_->capacity_tokens));
  std::vector<int32_t> pages(slots);  // slot s is page s
  for (size_t s = 0; s < slots; ++s) pages[s] = static_cast<int32_t>(s);
  const size_t bytes = slots * sizeof(int32_t);
  for (auto [buffer, size] : {std::pair(&latch_, kLatchBytes), std::pair(&capacity_, bytes),
                              std::pair(&page_table_, bytes)}) {
    auto made = device_.Allocate(size, MemoryKind::kDevice, "attention");
    if (!made.ok()) return made.status();
    *buffer = *std::move(made);
  }
  if (absl::Status status = device_.Upload(capacity_.data(), capacity.data(), bytes); !status.ok())
    return status;
  return device_.Upload(page_table_.data(), pages.data(), bytes);
}

size_t AttentionSession::InputBytes(int64_t rows) const {
  return sizeof(StepInputsHeader) +
         static_cast<size_t>(rows) *
             (sizeof(StepRow) +
              static_cast<size_t>(Heads(*config_) * config_->head_size) * sizeof(float));
}

// REQUIRES: no graph holds the buffers' addresses.
absl::Status AttentionSession::Grow(CallBuffers& buffers, int64_t rows, Phase phase) {
  if (rows > buffers.rows) {
    const AttentionConfig& c = *config_;
    const size_t query = static_cast<size_t>(rows * c.num_heads * c.head_size);
    const struct {
      Buffer* buffer;
      size_t bytes;
      MemoryKind kind;
    } wanted[] = {
        {&buffers.host, InputBytes(rows), MemoryKind::kPinned},
        {&buffers.inputs, InputBytes(rows), MemoryKind::kDevice},
        {&buffers.meta, static_cast<size_t>(rows) * sizeof(RowMeta), MemoryKind::kDevice},
        {&buffers.query, query * sizeof(float), MemoryKind::kDevice},
        {&buffers.output, query * SizeOf(c.dtype), MemoryKind::kDevice},
    };
    buffers.rows = 0;  // until all of them are there
    for (const auto& want : wanted) {
      *want.buffer = Buffer();  // the old one is freed before the new one is taken
      auto made = device_.Allocate(want.bytes, want.kind, "attention");
      if (!made.ok()) return made.status();
      *want.buffer = *std::move(made);
    }
    buffers.rows = rows;
  }
  // A short call may need more than a long one: it is split more finely.
  const size_t needed =
      device_.ops().workspace_bytes({.params = AttentionFor(buffers, 0, rows, phase)});
  if (needed > buffers.workspace.bytes()) {
    auto made = device_.Allocate(needed, MemoryKind::kDevice, "attention");
    if (!made.ok()) return made.status();
    buffers.workspace = *std::move(made);
  }
  return absl::OkStatus();
}

KvView AttentionSession::View() const {
  const AttentionConfig& c = *config_;
  return {.key = key_.data(),
          .value = value_.data(),
          .page_table = page_table_.data<int32_t>(),
          .max_pages = 1,
          .pool_pages = static_cast<int32_t>(c.layers * c.batch),
          .page_shift = 31,
          .page_tokens = static_cast<int32_t>(c.capacity_tokens),
          .kv_heads = static_cast<int32_t>(c.kv_num_heads),
          .head_dim = static_cast<int32_t>(c.head_size),
          .dtype = c.dtype};
}

SlotTables AttentionSession::Tables() const {
  const int32_t slots = static_cast<int32_t>(config_->layers * config_->batch);
  return {.latch = latch_.data<Latch>(),
          .capacity = capacity_.data<int32_t>(),
          .page_table = page_table_.data<int32_t>(),
          .slots = slots,
          .max_pages = 1,
          .pool_pages = slots,
          .page_shift = 31,
          .page_tokens = static_cast<int32_t>(config_->capacity_tokens),
          .latch_stride = 0};
}

MetadataOp AttentionSession::MetadataFor(const CallBuffers& buffers, int64_t rows) const {
  return {.inputs = reinterpret_cast<const StepRow*>(buffers.inputs.data<char>() +
                                                     sizeof(StepInputsHeader)),
          .meta = buffers.meta.data<RowMeta>(),
          .tables = Tables(),
          .rows = static_cast<int32_t>(rows),
          .rotary_rows = static_cast<int32_t>(config_->rotary_rows),
          .vocab = 0};
}

AttentionOp AttentionSession::AttentionFor(const CallBuffers& buffers, int64_t first_row,
                                           int64_t rows, Phase phase) const {
  const AttentionConfig& c = *config_;
  const int64_t width = c.num_heads * c.head_size;
  return {
      .meta = buffers.meta.data<RowMeta>() + first_row,
      .q = buffers.query.data<float>() + first_row * width,
      .kv = View(),
      .q_heads = static_cast<int32_t>(c.num_heads),
      .scale = c.scale != 0.0f ? c.scale : 1.0f / std::sqrt(static_cast<float>(c.head_size)),
      .window = static_cast<int32_t>(c.local_window_size),
      .softcap = c.softcap,
      .head_sink = sink_.data<float>(),
      .out = buffers.output.data<char>() + static_cast<size_t>(first_row * width) * SizeOf(c.dtype),
      .out_dtype = c.dtype,
      .rows = static_cast<int32_t>(rows),
      .phase = phase,
      .max_total = static_cast<int32_t>(c.capacity_tokens),
      .workspace = buffers.workspace.data(),
      .workspace_bytes = buffers.workspace.bytes()};
}

// Everything but the attention itself: upload, judgement, and split, rotation and append.
StepProgram AttentionSession::BuildProgram(const CallBuffers& buffers, int64_t rows) const {
  const AttentionConfig& c = *config_;
  StepProgram program;
  program.calls.push_back({UploadOp{.host_source = buffers.host.data(),
                                    .destination = buffers.inputs.data(),
                                    .bytes = InputBytes(rows)},
                           -1, "inputs"});
  program.calls.push_back({MetadataFor(buffers, rows), -1, "metadata"});
  const AttentionPrepOp prep = {
      .meta = buffers.meta.data<RowMeta>(),
      .qkv = reinterpret_cast<const float*>(buffers.inputs.data<char>() + sizeof(StepInputsHeader) +
                                            static_cast<size_t>(rows) * sizeof(StepRow)),
      .cos = c.do_rotary ? cos_.data<float>() : nullptr,
      .sin = sin_.data<float>(),
      .rotary_dim = static_cast<int32_t>(c.rotary_dim),
      .rotary_interleaved = c.rotary_interleaved,
      .q_heads = static_cast<int32_t>(c.num_heads),
      .q = buffers.query.data<float>(),
      .kv = View(),
      .rows = static_cast<int32_t>(rows)};
  const std::vector<uint32_t> parts = c.disable_prep_fusion
                                          ? std::vector<uint32_t>{kPrepQuery, kPrepKey, kPrepValue}
                                          : std::vector<uint32_t>{kPrepAll};
  for (const uint32_t part : parts) {
    program.calls.push_back({prep, -1, "prep"});
    std::get<AttentionPrepOp>(program.calls.back().params).parts = part;
  }
  return program;
}

absl::Status AttentionSession::Capture() {
  const AttentionConfig& c = *config_;
  signature_ = {.backend = device_.info().backend,
                .dtype = c.dtype,
                .rows = static_cast<int32_t>(c.batch),
                .layers = static_cast<int32_t>(c.layers),
                .q_heads = static_cast<int32_t>(c.num_heads),
                .kv_heads = static_cast<int32_t>(c.kv_num_heads),
                .head_dim = static_cast<int32_t>(c.head_size),
                .past_capacity = c.capacity_tokens,
                .present_capacity = c.capacity_tokens,
                .page_tokens = static_cast<int32_t>(c.capacity_tokens),
                .pool_pages = static_cast<int32_t>(c.layers * c.batch),
                .rotary_rows = static_cast<int32_t>(c.rotary_rows),
                .window = static_cast<int32_t>(c.local_window_size),
                .packed_qkv = c.packed_qkv,
                .explicit_positions = c.explicit_positions};
  StepProgram program = BuildProgram(step_, c.batch);
  program.calls.push_back({AttentionFor(step_, 0, c.batch, Phase::kDecode), -1, "attention"});
  const GraphCache::Launch launch = [&](Device& device) { return Submit(program, device); };
  // Inactive rows: nothing of the session is touched.
  auto* rows = reinterpret_cast<StepRow*>(step_.host.data<char>() + sizeof(StepInputsHeader));
  std::fill_n(rows, c.batch, StepRow{kInactive, 0, 0, 0, 0, 0});
  if (absl::Status status = graphs_.Warm(signature_, launch); !status.ok()) return status;
  return graphs_.Capture(signature_, signature_, launch);
}

absl::StatusOr<AttentionResult> AttentionSession::Step(const AttentionCall& call) {
  const absl::Time begin = absl::Now();
  const bool captured = call.bias.empty();  // a bias has an address and a shape of its own
  if (captured) {
    WriteInputs(call, step_);
    if (absl::Status status = graphs_.Replay(signature_); !status.ok()) return status;
  } else if (absl::Status status = RunEager(call, prefill_, Phase::kDecode); !status.ok()) {
    return status;
  }
  auto result = Finish(call, captured ? step_ : prefill_);
  if (!result.ok()) return result.status();
  result->captured = captured;
  result->attention_variant = "decode";
  result->timings.device = absl::Now() - begin;
  return result;
}

absl::StatusOr<AttentionResult> AttentionSession::Prefill(const AttentionCall& call) {
  const absl::Time begin = absl::Now();
  if (absl::Status status = CheckLengthsOnHost(call); !status.ok()) return status;
  if (violation_.has_value()) {
    AttentionResult refused;
    refused.violation = violation_;
    return refused;
  }
  if (call.past_tokens > 0) {
    if (absl::Status status = WritePast(call); !status.ok()) return status;
  }
  const bool flash = config_->backend == AttentionBackend::kFlash ||
                     (config_->backend == AttentionBackend::kAuto && call.q_sequence > 1);
  if (absl::Status status = RunEager(call, prefill_, flash ? Phase::kPrefill : Phase::kDecode);
      !status.ok()) {
    return status;
  }
  auto result = Finish(call, prefill_);
  if (!result.ok()) return result.status();
  result->attention_variant = flash ? "flash" : "reference";
  if (call.want_present) {
    if (absl::Status status = ReadLayer(call.layer, result->present_key, result->present_value);
        !status.ok()) {
      return status;
    }
  }
  result->timings.device = absl::Now() - begin;
  return result;
}

absl::Status AttentionSession::RunEager(const AttentionCall& call, CallBuffers& buffers,
                                        Phase phase) {
  const AttentionConfig& c = *config_;
  const int64_t rows = c.batch * call.q_sequence;
  if (absl::Status status = Grow(buffers, rows, phase); !status.ok()) return status;
  if (!call.bias.empty()) {
    const size_t bytes = call.bias.size() * sizeof(float);
    if (bytes > buffers.bias.bytes()) {
      auto made = device_.Allocate(bytes, MemoryKind::kDevice, "attention");
      if (!made.ok()) return made.status();
      buffers.bias = *std::move(made);
    }
    if (absl::Status status = device_.Upload(buffers.bias.data(), call.bias.data(), bytes);
        !status.ok()) {
      return status;
    }
  }
  WriteInputs(call, buffers);
  StepProgram program = BuildProgram(buffers, rows);
  for (int64_t b = 0; b < c.batch; ++b) {  // the tiled kernel takes the rows of one slot
    AttentionOp op = AttentionFor(buffers, b * call.q_sequence, call.q_sequence, phase);
    if (!call.bias.empty()) {
      const int64_t head = call.q_sequence * call.bias_keys;
      op.bias = buffers.bias.data<float>() + (call.bias_batch > 1 ? b * call.bias_heads * head : 0);
      op.bias_row_stride = call.bias_keys;
      op.bias_head_stride = call.bias_heads > 1 ? head : 0;
    }
    program.calls.push_back({op, -1, "attention"});
  }
  return Submit(program, device_);
}

// Rows b * S + s, and their q, k and v as one f32 row each.
void AttentionSession::WriteInputs(const AttentionCall& call, CallBuffers& buffers) {
  const AttentionConfig& c = *config_;
  const int64_t rows = c.batch * call.q_sequence;
  char* host = buffers.host.data<char>();
  *reinterpret_cast<StepInputsHeader*>(host) = {.sequence = ++sequence_};
  auto* row = reinterpret_cast<StepRow*>(host + sizeof(StepInputsHeader));
  auto* qkv = reinterpret_cast<float*>(row + rows);
  const size_t q_width = static_cast<size_t>(c.num_heads * c.head_size);
  const size_t kv_width = static_cast<size_t>(c.kv_num_heads * c.head_size);
  const size_t element = SizeOf(c.dtype);
  const bool append = call.kv_sequence > 0;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t b = r / call.q_sequence, s = r % call.q_sequence;
    row[r] = {
        .slot = static_cast<int32_t>(call.layer * c.batch + b),
        .token = 0,
        .seqlens_k = static_cast<int32_t>(call.seqlens_k[static_cast<size_t>(b)] -
                                          (call.q_sequence - 1 - s)),
        .flags = (append ? 0 : kRowAttendOnly) | (c.explicit_positions ? kRowExplicitPosition : 0),
        .position = c.explicit_positions ? call.position_ids[static_cast<size_t>(r)] : 0,
        .step = steps_};
    const auto widen = [&](std::string_view source, size_t width, float* out) {
      ConvertToF32(c.dtype, source.data() + static_cast<size_t>(r) * width * element, out, width);
    };
    if (c.packed_qkv) {
      widen(call.query, q_width + 2 * kv_width, qkv);
    } else {
      widen(call.query, q_width, qkv);
      if (append) {
        widen(call.key, kv_width, qkv + q_width);
        widen(call.value, kv_width, qkv + q_width + kv_width);
      }
    }
    qkv += q_width + 2 * kv_width;
  }
}

absl::StatusOr<AttentionResult> AttentionSession::Finish(const AttentionCall& call,
                                                         const CallBuffers& buffers) {
  const AttentionConfig& c = *config_;
  const int64_t rows = c.batch * call.q_sequence;
  AttentionResult result;
  result.metadata_variant = "separate";
  result.prep_variant = c.disable_prep_fusion ? "unfused" : "fused";
  Latch latch;
  if (absl::Status status = device_.Download(&latch, latch_.data(), sizeof(latch)); !status.ok())
    return status;
  const bool was_poisoned = violation_.has_value();
  if (latch.mask != 0 && !was_poisoned) {
    latch.layer = static_cast<int32_t>(call.layer);
    violation_ = Violation{.latch = latch, .text = DescribeLatch(latch)};
  }
  result.violation = violation_;
  if (was_poisoned) return result;
  result.output.resize(static_cast<size_t>(rows * c.num_heads * c.head_size) * SizeOf(c.dtype));
  if (absl::Status status =
          device_.Download(result.output.data(), buffers.output.data(), result.output.size());
      !status.ok()) {
    return status;
  }
  if (violation_.has_value()) {
    if (absl::Status status = ZeroSkippedRows(buffers, rows, result.output); !status.ok())
      return status;
    return result;
  }
  for (int64_t b = 0; b < c.batch; ++b) {
    lengths_[static_cast<size_t>(call.layer * c.batch + b)] =
        int64_t{call.seqlens_k[static_cast<size_t>(b)]} + 1;
  }
  ++steps_;
  return result;
}

// The buffer still holds an older call's output where a row was skipped.
absl::Status AttentionSession::ZeroSkippedRows(const CallBuffers& buffers, int64_t rows,
                                               std::string& output) const {
  std::vector<RowMeta> meta(static_cast<size_t>(rows));
  if (absl::Status status =
          device_.Download(meta.data(), buffers.meta.data(), meta.size() * sizeof(RowMeta));
      !status.ok()) {
    return status;
  }
  const size_t width = output.size() / meta.size();
  for (size_t r = 0; r < meta.size(); ++r) {
    if (meta[r].slot < 0)
      std::fill_n(output.begin() + static_cast<int64_t>(r * width), width, '\0');
  }
  return absl::OkStatus();
}

}  // namespace latchd
