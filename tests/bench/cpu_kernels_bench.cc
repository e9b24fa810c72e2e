// Speed of the CPU kernels on the shapes of SmolLM2-135M: the linears of one decode step as a
// chain, a whole step, the linears of a prefill chunk, attention and sampling. Bytes per second
// count what the op must read: compare with ReadCeiling, the speed at which the same threads can
// read the same memory.

#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "kernels/api/convert.h"
#include "kernels/api/op_table.h"

namespace latchd {
namespace {

constexpr int64_t kHidden = 576, kFeedForward = 1536, kVocab = 49152, kLayers = 30;
constexpr int32_t kQHeads = 9, kKvHeads = 3, kHeadDim = 64;
constexpr int64_t kQkv = (kQHeads + 2 * kKvHeads) * kHeadDim;

// Zero-filled memory on large pages, as the device allocates it.
class Memory {
 public:
  explicit Memory(size_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(data_, bytes, MADV_HUGEPAGE);
  }
  ~Memory() { munmap(data_, bytes_); }
  Memory(const Memory&) = delete;
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }

 private:
  void* data_;
  size_t bytes_;
};

struct Weight {
  std::unique_ptr<Memory> memory;
  WeightView view;

  Weight(DType dtype, int64_t n, int64_t k, std::mt19937& random) {
    const size_t count = static_cast<size_t>(n * k);
    memory = std::make_unique<Memory>(count * SizeOf(dtype));
    std::vector<float> block(4096);
    std::normal_distribution<float> normal(0.0f, 0.02f);
    for (float& v : block) v = normal(random);
    for (size_t i = 0; i < count; i += block.size()) {
      const size_t part = std::min(block.size(), count - i);
      ConvertFromF32(dtype, block.data(), memory->as<char>() + i * SizeOf(dtype), part);
    }
    view = {memory->as<void>(), dtype, n, k};
  }
};

// A model of random weights with everything one step needs. Rows use slots 0 .. rows - 1 of one
// page each.
class Model {
 public:
  Model(DType dtype, int32_t rows, int32_t capacity)
      : rows_(rows),
        capacity_(capacity),
        head_(dtype, kVocab, kHidden, random_),
        kv_(static_cast<size_t>(rows) * kKvHeads * capacity * kHeadDim * SizeOf(dtype) * 2 *
            kLayers),
        workspace_(size_t{256} << 20),
        hidden_(static_cast<size_t>(rows * kHidden), 0.01f),
        qkv_(static_cast<size_t>(rows * kQkv)),
        q_(static_cast<size_t>(rows * kHidden)),
        attended_(static_cast<size_t>(rows * kHidden)),
        mlp_(static_cast<size_t>(rows * kFeedForward)),
        logits_(static_cast<size_t>(rows * kVocab)),
        norm_(kHidden, 1.0f),
        cosine_(static_cast<size_t>(capacity) * kHeadDim / 2, 1.0f),
        sine_(static_cast<size_t>(capacity) * kHeadDim / 2, 0.0f),
        meta_(static_cast<size_t>(rows)),
        pages_(static_cast<size_t>(rows)) {
    for (int64_t l = 0; l < kLayers; ++l) {
      weights_.emplace_back(dtype, kQkv, kHidden, random_);
      weights_.emplace_back(dtype, kHidden, kHidden, random_);
      weights_.emplace_back(dtype, 2 * kFeedForward, kHidden, random_);
      weights_.emplace_back(dtype, kHidden, kFeedForward, random_);
    }
    for (int32_t r = 0; r < rows; ++r) pages_[static_cast<size_t>(r)] = r;
  }

  // Rows are of separate slots (decode) or of slot 0 (prefill).
  void SetTotal(int32_t total, Phase phase) {
    for (int32_t r = 0; r < rows_; ++r) {
      const int32_t own = phase == Phase::kDecode ? total : total + r;
      meta_[static_cast<size_t>(r)] = {
          phase == Phase::kDecode ? r : 0, 1, own - 1, own, own - 1, 0};
    }
  }

  void RunLinear(const WeightView& weight, const void* x, float* y, Epilogue epilogue, bool norm,
                 Phase phase) {
    const LinearOp op = {.meta = meta_.data(),
                         .x = x,
                         .x_dtype = DType::kF32,
                         .norm_weight = norm ? norm_.data() : nullptr,
                         .norm_eps = 1e-5f,
                         .weight = weight,
                         .bias = nullptr,
                         .epilogue = epilogue,
                         .y = y,
                         .y_dtype = DType::kF32,
                         .rows = rows_,
                         .phase = phase,
                         .workspace = workspace_.as<void>(),
                         .workspace_bytes = workspace_.bytes()};
    if (!CpuOps().linear(op, nullptr).ok()) std::abort();
  }

  KvView Kv(int64_t layer) const {
    const size_t bytes =
        static_cast<size_t>(rows_) * kKvHeads * capacity_ * kHeadDim * SizeOf(head_.view.dtype);
    char* base = kv_.as<char>() + static_cast<size_t>(layer) * 2 * bytes;
    return {base, base + bytes, pages_.data(), 1,        rows_,
            31,   capacity_,    kKvHeads,      kHeadDim, head_.view.dtype};
  }

  void RunAttention(int64_t layer, Phase phase) {
    const AttentionPrepOp prep = {.meta = meta_.data(),
                                  .qkv = qkv_.data(),
                                  .cos = cosine_.data(),
                                  .sin = sine_.data(),
                                  .rotary_dim = kHeadDim,
                                  .q_heads = kQHeads,
                                  .q = q_.data(),
                                  .kv = Kv(layer),
                                  .rows = rows_};
    if (!CpuOps().attention_prep(prep, nullptr).ok()) std::abort();
    const AttentionOp attention = {.meta = meta_.data(),
                                   .q = q_.data(),
                                   .kv = Kv(layer),
                                   .q_heads = kQHeads,
                                   .scale = 0.125f,
                                   .window = -1,
                                   .softcap = 0,
                                   .out = attended_.data(),
                                   .out_dtype = DType::kF32,
                                   .rows = rows_,
                                   .phase = phase,
                                   .max_total = capacity_,
                                   .workspace = workspace_.as<void>(),
                                   .workspace_bytes = workspace_.bytes()};
    if (!CpuOps().attention(attention, nullptr).ok()) std::abort();
  }

  void Run(Phase phase, bool attention, bool head) {
    for (int64_t l = 0; l < kLayers; ++l) {
      const Weight* w = &weights_[static_cast<size_t>(4 * l)];
      RunLinear(w[0].view, hidden_.data(), qkv_.data(), Epilogue::kStore, true, phase);
      if (attention) RunAttention(l, phase);
      RunLinear(w[1].view, attended_.data(), hidden_.data(), Epilogue::kResidual, false, phase);
      RunLinear(w[2].view, hidden_.data(), mlp_.data(), Epilogue::kSiluMul, true, phase);
      RunLinear(w[3].view, mlp_.data(), hidden_.data(), Epilogue::kResidual, false, phase);
    }
    if (head) RunLinear(head_.view, hidden_.data(), logits_.data(), Epilogue::kStore, true, phase);
    std::fill(hidden_.begin(), hidden_.end(), 0.01f);
  }

  size_t weight_bytes() const {
    size_t bytes = head_.memory->bytes();
    for (const Weight& w : weights_) bytes += w.memory->bytes();
    return bytes;
  }
  const std::vector<Weight>& weights() const { return weights_; }
  const Weight& head() const { return head_; }

 private:
  std::mt19937 random_{1};
  int32_t rows_;
  int32_t capacity_;
  std::vector<Weight> weights_;
  Weight head_;
  Memory kv_, workspace_;
  std::vector<float> hidden_, qkv_, q_, attended_, mlp_, logits_, norm_, cosine_, sine_;
  std::vector<RowMeta> meta_;
  std::vector<int32_t> pages_;
};

DType DTypeOf(const benchmark::State& state) { return static_cast<DType>(state.range(0)); }

// Only reads: the sum of the weights as 64-bit words.
void ReadCeiling(benchmark::State& state) {
  const Model model(DType::kF16, 1, 64);
  const auto read = [](const Memory& memory) {
    const auto* words = memory.as<uint64_t>();
    const int64_t count = static_cast<int64_t>(memory.bytes() / 8);
    uint64_t sum = 0;
#pragma omp parallel for reduction(+ : sum) schedule(static)
    for (int64_t i = 0; i < count; ++i) sum += words[i];
    benchmark::DoNotOptimize(sum);
  };
  for (auto _ : state) {
    for (const Weight& w : model.weights()) read(*w.memory);
    read(*model.head().memory);
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(model.weight_bytes()));
}
BENCHMARK(ReadCeiling)->UseRealTime()->Unit(benchmark::kMillisecond);

void DecodeLinears(benchmark::State& state) {
  Model model(DTypeOf(state), static_cast<int32_t>(state.range(1)), 64);
  model.SetTotal(1, Phase::kDecode);
  for (auto _ : state) model.Run(Phase::kDecode, false, true);
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(model.weight_bytes()));
}
BENCHMARK(DecodeLinears)
    ->ArgNames({"dtype", "rows"})
    ->ArgsProduct({{0, 1, 2}, {1}})
    ->ArgsProduct({{1}, {2, 4, 8, 16}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

void DecodeStep(benchmark::State& state) {
  Model model(DTypeOf(state), 1, 2048);
  model.SetTotal(static_cast<int32_t>(state.range(1)), Phase::kDecode);
  for (auto _ : state) model.Run(Phase::kDecode, true, true);
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(model.weight_bytes()));
}
BENCHMARK(DecodeStep)
    ->ArgNames({"dtype", "total"})
    ->ArgsProduct({{1}, {64, 512, 2048}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

// Tokens per second of a chunk without the head.
void PrefillChunk(benchmark::State& state) {
  const int32_t rows = static_cast<int32_t>(state.range(1));
  Model model(DTypeOf(state), rows, 2048);
  model.SetTotal(static_cast<int32_t>(state.range(2)), Phase::kPrefill);
  for (auto _ : state) model.Run(Phase::kPrefill, true, false);
  state.SetItemsProcessed(state.iterations() * rows);
}
BENCHMARK(PrefillChunk)
    ->ArgNames({"dtype", "rows", "total"})
    ->ArgsProduct({{1}, {16, 64, 256}, {1, 1024}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

// One row: greedy, plain temperature, and all filters.
void SampleRow(benchmark::State& state) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> source(kVocab), logits(kVocab);
  for (float& v : source) v = normal(random);
  SlotSampling sampling = {
      .temperature = state.range(0) == 0 ? 0.0f : 0.8f, .top_p = 1.0f, .repetition_penalty = 1.0f};
  if (state.range(0) == 2) sampling.top_p = 0.95f;
  if (state.range(0) == 3) sampling.top_k = 40;
  Latch latch = {};
  int32_t next = 0, capacity = 64, page = 0;
  std::vector<int32_t> history(64), workspace(2 * kVocab);
  std::vector<LogitBias> bias(kMaxLogitBias);
  const SlotTables tables = {&latch,         &next, &capacity, &page, &sampling, bias.data(),
                             history.data(), 1,     1,         1,     31,        64};
  const StepRow input = {};
  const RowMeta meta = {0, 0, 10, 11, 10, kRowSample};
  const StepInputsHeader header = {};
  RowResult result;
  const SampleOp op = {&meta,
                       &input,
                       &header,
                       logits.data(),
                       kVocab,
                       tables,
                       kLayers,
                       &result,
                       1,
                       workspace.data(),
                       workspace.size() * sizeof(int32_t)};
  for (auto _ : state) {
    std::memcpy(logits.data(), source.data(), source.size() * sizeof(float));
    if (!CpuOps().sample(op, nullptr).ok()) std::abort();
  }
}
BENCHMARK(SampleRow)->ArgName("mode")->DenseRange(0, 3)->UseRealTime()->Unit(
    benchmark::kMicrosecond);

}  // namespace
}  // namespace latchd
