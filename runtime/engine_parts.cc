#include "runtime/engine_parts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace latchd {
namespace {

constexpr int64_t kCpuPrefillChunk = 128;
constexpr int64_t kCudaPrefillChunk = 512;
// Share of the memory that is free after the weights which the KV pool takes by default. The CPU's
// is low because the machine is rarely latchd's alone.
constexpr double kCpuKvShare = 0.25;
constexpr double kCudaKvShare = 0.85;

absl::StatusOr<DType> ChooseDType(const std::string& name, DType file_dtype) {
  if (name == "auto") return file_dtype;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    if (name == Name(dtype)) return dtype;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("dtype: expected auto, f32, f16 or bf16, got ", name));
}

absl::Status CheckRange(const char* field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": expected ", low, "..", high, ", got ", value));
}

absl::StatusOr<KvLayout> PlanKv(const EngineOptions& options, const ModelConfig& config,
                                DType dtype, Device& device, int64_t max_capacity) {
  KvLayout layout = {.layers = static_cast<int32_t>(config.layers),
                     .kv_heads = static_cast<int32_t>(config.kv_heads),
                     .head_dim = static_cast<int32_t>(config.head_dim),
                     .dtype = dtype,
                     .slots = static_cast<int32_t>(options.max_sessions) + 1,
                     .pool_pages = 0,
                     .max_capacity_tokens = max_capacity};
  int64_t pages = KvLayout::PagesFor(options.kv_tokens);
  if (options.kv_tokens == 0) {
    size_t used = 0;
    for (const auto& [label, bytes] : device.allocations()) used += bytes;
    const size_t free = device.info().free_bytes > used ? device.info().free_bytes - used : 0;
    const double share = device.info().backend == "cpu" ? kCpuKvShare : kCudaKvShare;
    const int64_t affordable = static_cast<int64_t>(share * static_cast<double>(free)) /
                               static_cast<int64_t>(layout.PageBytes());
    pages = std::min<int64_t>(affordable, options.max_sessions * layout.max_pages());
    if (pages < 1)
      return absl::ResourceExhaustedError("kv_tokens: no memory is left for a KV page");
  }
  constexpr int64_t kMostPages = int64_t{1} << 24;
  if (absl::Status status =
          CheckRange("kv_tokens", pages * kPageTokens, 1, kMostPages * kPageTokens);
      !status.ok()) {
    return status;
  }
  layout.pool_pages = static_cast<int32_t>(pages) + 1;  // and the scratch slot's
  return layout;
}

}  // namespace

absl::StatusOr<std::unique_ptr<EngineParts>> EngineParts::Build(const EngineOptions& options,
                                                                Metrics& metrics,
                                                                const AttentionHost::Post& post,
                                                                const Progress& progress) {
  const absl::Status ranges[] = {
      CheckRange("max_sessions", options.max_sessions, 1, EngineOptions::kMaxSessions),
      CheckRange("max_rows", options.max_rows, 1, EngineOptions::kMaxRows),
      CheckRange("prefill_chunk", options.prefill_chunk, 0, EngineOptions::kMaxPrefillChunk),
      CheckRange("max_queue", options.max_queue, 1, EngineOptions::kMaxQueue),
      CheckRange("attention_memory", options.attention_memory, 0,
                 EngineOptions::kMaxAttentionMemory)};
  for (const absl::Status& range : ranges) {
    if (!range.ok()) return range;
  }
  auto parts = std::make_unique<EngineParts>();
  parts->options = options;
  parts->started = absl::Now();

  absl::StatusOr<std::unique_ptr<ModelSource>> source = OpenModel(options.model_path);
  if (!source.ok()) return source.status();
  parts->source = *std::move(source);
  parts->fingerprint = parts->source->fingerprint();
  const ModelConfig& config = parts->source->config();

  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = LoadTokenizer(options.model_path);
  if (tokenizer.ok()) {
    parts->tokenizer = *std::move(tokenizer);
  } else if (!absl::IsNotFound(tokenizer.status())) {
    return tokenizer.status();
  }

  absl::StatusOr<DType> dtype = ChooseDType(options.dtype, config.file_dtype);
  if (!dtype.ok()) return dtype.status();
  const int64_t max_capacity =
      options.max_capacity == 0 ? config.context_tokens : options.max_capacity;
  if (absl::Status status = CheckRange("max_capacity", max_capacity, 1, config.context_tokens);
      !status.ok()) {
    return status;
  }
  absl::StatusOr<std::unique_ptr<Device>> device = CreateDevice(options.device, options.threads);
  if (!device.ok()) return device.status();
  parts->device = *std::move(device);
  const bool cpu = parts->device->info().backend == "cpu";

  const absl::Time load_begin = absl::Now();
  absl::StatusOr<std::unique_ptr<TransformerWeights>> weights = TransformerWeights::Load(
      *parts->source, *parts->device, *dtype, max_capacity, [&](int64_t done, int64_t total) {
        if (progress) progress("load", done, total);
      });
  if (!weights.ok()) return weights.status();
  parts->weights = *std::move(weights);
  parts->load_time = absl::Now() - load_begin;

  absl::StatusOr<KvLayout> layout = PlanKv(options, config, *dtype, *parts->device, max_capacity);
  if (!layout.ok()) return layout.status();
  absl::StatusOr<std::unique_ptr<KvCache>> kv = KvCache::Create(*layout, *parts->device);
  if (!kv.ok()) return kv.status();
  parts->kv = *std::move(kv);

  const int64_t chunk = options.prefill_chunk != 0 ? options.prefill_chunk
                        : cpu                      ? kCpuPrefillChunk
                                                   : kCudaPrefillChunk;
  absl::StatusOr<std::unique_ptr<StepRunner>> runner =
      StepRunner::Create(*parts->weights, *parts->kv, *parts->device,
                         static_cast<int32_t>(std::min(options.max_rows, options.max_sessions)),
                         static_cast<int32_t>(std::min(chunk, max_capacity)));
  if (!runner.ok()) return runner.status();
  parts->runner = *std::move(runner);
  absl::Status captured = parts->runner->CaptureAll([&](int64_t done, int64_t total) {
    if (progress) progress("capture", done, total);
  });
  if (!captured.ok()) return captured;
  for (const GraphCache::Entry* entry : parts->runner->graphs().entries())
    metrics.GraphCaptured(static_cast<int64_t>(entry->graph->bytes()));
  metrics.SetInfo(LATCHD_VERSION, parts->device->info().backend, config.name,
                  std::string(Name(*dtype)));

  // Ids begin at the start time, so that none is reused after a restart; they stay below 2^53 for
  // JSON readers.
  const SessionId first_id = static_cast<SessionId>(absl::ToUnixSeconds(parts->started)) << 20;
  parts->loop = std::make_unique<StepLoop>(
      StepLoopOptions{
          .vocab = config.vocab, .default_ttl = options.default_ttl, .first_session_id = first_id},
      *parts->runner, *parts->kv, parts->tokenizer.get(), metrics);
  if (options.attention_memory > 0) {
    parts->attention = std::make_unique<AttentionHost>(
        *parts->device,
        AttentionLimits{.max_sessions = options.max_sessions,
                        .memory_bytes = static_cast<size_t>(options.attention_memory),
                        .default_ttl = options.default_ttl,
                        .first_session_id = first_id},
        post);
  }
  return parts;
}

EngineStatus EngineParts::Status() const {
  const DeviceInfo& info = device->info();
  const GraphCache::Counters& counters = runner->graphs().counters();
  EngineStatus status = {.device_name = info.name,
                         .backend = info.backend,
                         .dtype = std::string(Name(weights->dtype())),
                         .model_name = source->config().name,
                         .model_path = source->path(),
                         .fingerprint = fingerprint};
  if (options.device == "auto" && info.backend == "cpu") {
    status.device_note = absl::StrCat("running on the CPU: ", GpuUnavailableReason());
  }
  status.sessions = static_cast<int64_t>(loop->sessions());
  status.max_sessions = options.max_sessions;
  status.kv_tokens_total = kv->total_tokens();
  status.kv_tokens_free = kv->free_tokens();
  status.max_capacity = kv->layout().max_capacity_tokens;
  for (const auto& [label, bytes] : device->allocations()) {
    (label == "weights" ? status.weight_bytes
     : label == "kv"    ? status.kv_bytes
                        : status.other_bytes) += bytes;
  }
  status.model_file_bytes = source->file_bytes();
  status.load_time = load_time;
  status.graph_bytes = runner->graphs().bytes();
  for (const GraphCache::Entry* entry : runner->graphs().entries()) {
    if (entry->graph == nullptr) continue;
    status.graphs.push_back({entry->signature.ToString(), entry->graph->nodes(),
                             entry->graph->bytes(), entry->replays});
  }
  status.graph_hits = counters.hits;
  status.graph_misses = counters.misses;
  status.graph_captures = counters.captures;
  status.started = started;
  status.last_good_step = loop->last_good_step();
  if (attention != nullptr) {
    status.last_good_step = std::max(status.last_good_step, attention->last_good_call());
  }
  status.fault = loop->fault().ok() ? device->fault() : loop->fault();
  return status;
}

absl::Status EngineParts::InjectFault(const FaultRequest& request) {
  if (absl::Status status = loop->SetFault(request); !status.ok()) return status;
  if (request.norm_weight && !true_norm_weight) {
    float value = 0;
    if (absl::Status status = device->Download(&value, weights->final_norm, sizeof(value));
        !status.ok())
      return status;
    true_norm_weight = value;
  }
  std::optional<float> write = request.norm_weight;
  if (request.restore_weights && true_norm_weight)
    write = std::exchange(true_norm_weight, std::nullopt);
  if (!write) return absl::OkStatus();
  return device->Upload(weights->final_norm, &*write, sizeof(float));
}

}  // namespace latchd
