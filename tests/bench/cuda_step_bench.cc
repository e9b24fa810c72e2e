// Times a whole captured decode step on one GPU with random weights: ms/step, tokens/s, GB/s and
// the share of the measured read ceiling; with --ops also each kind of op, all layers' calls of it
// captured on their own. Prints figures, asserts nothing but that the step ran.
//   latchd_cuda_step_bench [--ops] SHAPE:ROWS:CONTEXT[:DTYPE] ...   e.g. 1b:1:1024 8b:32:1024:f16

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/api/convert.h"
#include "runtime/device/cuda_device.h"

namespace latchd {
namespace {

constexpr double kCeilingBytesPerSecond = 4.5e12;  // read-only stream measured on an H200
constexpr int kReplays = 128, kRuns = 5;
constexpr int32_t kPageShift = 6, kPageTokens = 1 << kPageShift;

struct Shape {
  const char* name;
  int32_t hidden, layers, q_heads, kv_heads, head_dim, ff, vocab;
  bool tied;
};
constexpr Shape kShapes[] = {
    {"135m", 576, 30, 9, 3, 64, 1536, 49152, true},
    {"1b", 2048, 16, 32, 8, 64, 8192, 128256, true},
    {"8b", 4096, 32, 32, 8, 128, 14336, 128256, false},
};

template <typename T>
T Must(absl::StatusOr<T> value) {
  if (!value.ok()) {
    std::fprintf(stderr, "error: %s\n", std::string(value.status().message()).c_str());
    std::exit(1);
  }
  return *std::move(value);
}
void Must(const absl::Status& status) {
  if (!status.ok()) {
    std::fprintf(stderr, "error: %s\n", std::string(status.message()).c_str());
    std::exit(1);
  }
}

class StepBench {
 public:
  StepBench(Device& device, const Shape& shape, int32_t rows, int32_t context, DType dtype)
      : device_(device), shape_(shape), rows_(rows), context_(context), dtype_(dtype) {
    FillTemplate();
    Build();
  }

  void Run(bool per_op) {
    for (const OpCall& call : calls_) Must(device_.Run(call));  // warm
    Must(device_.Synchronize());
    const double seconds = Time(calls_);
    const auto* results = results_.data<RowResult>();
    std::printf(
        "%s %s rows %d context %d: %.4f ms/step, %.1f tok/s, %.2f GB, %.2f TB/s, %.1f%% of ceiling "
        "(row 0: token %d, logprob %.3f, latch %u)\n",
        shape_.name, std::string(Name(dtype_)).c_str(), rows_, context_, seconds * 1e3,
        rows_ / seconds, bytes_ / 1e9, bytes_ / seconds / 1e12,
        100.0 * bytes_ / seconds / kCeilingBytesPerSecond, results[0].token, results[0].logprob,
        results[0].latch.mask);
    std::fflush(stdout);
    if (per_op) PrintOps();
  }

 private:
  // Random values of the compute dtype, repeated over every weight: speed does not depend on them.
  void FillTemplate() {
    std::mt19937 random(std::random_device{}());
    std::uniform_real_distribution<float> value(-0.05f, 0.05f);
    std::vector<float> floats(size_t{4} << 20);
    for (float& f : floats) f = value(random);
    template_.resize(floats.size() * SizeOf(dtype_));
    ConvertFromF32(dtype_, floats.data(), template_.data(), floats.size());
  }

  void* Allocate(size_t bytes, MemoryKind kind = MemoryKind::kDevice) {
    buffers_.push_back(Must(device_.Allocate(bytes, kind, "bench")));
    return buffers_.back().data();
  }
  void* Random(size_t bytes) {
    char* data = static_cast<char*>(Allocate(bytes));
    for (size_t at = 0; at < bytes; at += template_.size()) {
      Must(device_.Upload(data + at, template_.data(), std::min(template_.size(), bytes - at)));
    }
    uploaded_ += bytes;
    return data;
  }
  float* Ones(int64_t count) {
    const std::vector<float> ones(static_cast<size_t>(count), 1.0f);
    void* data = Allocate(ones.size() * sizeof(float));
    Must(device_.Upload(data, ones.data(), ones.size() * sizeof(float)));
    return static_cast<float*>(data);
  }
  WeightView Weight(int64_t n, int64_t k) {
    const size_t bytes = device_.ops().packed_bytes(dtype_, n, k);
    bytes_ += static_cast<double>(bytes);
    return {Random(bytes), dtype_, n, k};
  }
  template <typename T>
  T* Zeros(size_t count) {
    return static_cast<T*>(Allocate(count * sizeof(T)));
  }

  void Add(OpParams params, int32_t layer, const char* label) {
    OpCall call = {std::move(params), layer, label};
    const size_t need = device_.ops().workspace_bytes(call);
    if (need > 0) {
      void* workspace = Allocate(need);
      if (auto* op = std::get_if<LinearOp>(&call.params))
        op->workspace = workspace, op->workspace_bytes = need;
      if (auto* op = std::get_if<AttentionOp>(&call.params))
        op->workspace = workspace, op->workspace_bytes = need;
      if (auto* op = std::get_if<SampleOp>(&call.params))
        op->workspace = workspace, op->workspace_bytes = need;
    }
    calls_.push_back(std::move(call));
  }
  void AddLinear(int32_t layer, const char* label, const void* x, DType x_dtype, const float* norm,
                 WeightView weight, Epilogue epilogue, void* y, DType y_dtype) {
    Add(LinearOp{meta_, x, x_dtype, norm, 1e-5f, weight, nullptr, epilogue, y, y_dtype, rows_,
                 Phase::kDecode, nullptr, 0},
        layer, label);
  }

  void Build() {
    const Shape& s = shape_;
    const size_t rows = static_cast<size_t>(rows_);
    const int32_t max_pages = (context_ + kPageTokens - 1) / kPageTokens, pages = max_pages * rows_;
    SlotTables tables = {};
    tables.latch = Zeros<Latch>(rows);
    tables.next_token = Zeros<int32_t>(rows);
    tables.capacity = Zeros<int32_t>(rows);
    tables.page_table = Zeros<int32_t>(static_cast<size_t>(pages));
    tables.sampling = Zeros<SlotSampling>(rows);
    tables.bias = Zeros<LogitBias>(rows * kMaxLogitBias);
    tables.history = Zeros<int32_t>(static_cast<size_t>(pages) * kPageTokens);
    tables.slots = rows_;
    tables.max_pages = max_pages;
    tables.pool_pages = pages;
    tables.page_shift = kPageShift;
    tables.page_tokens = kPageTokens;
    std::vector<int32_t> table(static_cast<size_t>(pages)), capacity(rows, max_pages * kPageTokens);
    for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i);
    std::shuffle(table.begin(), table.end(), std::mt19937(std::random_device{}()));
    Must(device_.Upload(tables.page_table, table.data(), table.size() * sizeof(int32_t)));
    Must(device_.Upload(tables.capacity, capacity.data(), rows * sizeof(int32_t)));
    SlotSampling greedy = {};
    greedy.top_p = greedy.repetition_penalty = 1.0f;
    const std::vector<SlotSampling> sampling(rows, greedy);
    Must(device_.Upload(tables.sampling, sampling.data(), rows * sizeof(SlotSampling)));

    const size_t input_bytes = sizeof(StepInputsHeader) + rows * sizeof(StepRow);
    char* pinned = static_cast<char*>(Allocate(input_bytes, MemoryKind::kPinned));
    char* inputs = static_cast<char*>(Allocate(input_bytes));
    auto* step_rows = reinterpret_cast<StepRow*>(pinned + sizeof(StepInputsHeader));
    for (int32_t r = 0; r < rows_; ++r) step_rows[r] = {r, 17 + r, context_ - 1, kRowSample, 0, 1};
    const auto* device_rows = reinterpret_cast<const StepRow*>(inputs + sizeof(StepInputsHeader));
    meta_ = Zeros<RowMeta>(rows);

    const int64_t q_width = int64_t{s.q_heads} * s.head_dim,
                  qkv_width = q_width + int64_t{2} * s.kv_heads * s.head_dim;
    const DType act = device_.ops().activation_dtype(dtype_);
    float* x = Zeros<float>(rows * s.hidden);
    float* qkv = Zeros<float>(rows * qkv_width);
    float* q = Zeros<float>(rows * q_width);
    void* attended = Allocate(rows * q_width * SizeOf(act));
    void* hidden = Allocate(rows * s.ff * SizeOf(act));
    float* logits = Zeros<float>(rows * s.vocab);
    float* norm = Ones(std::max(s.hidden, s.ff));
    float* cos = Ones(int64_t{context_} * s.head_dim / 2);
    float* sin = Zeros<float>(static_cast<size_t>(context_) * s.head_dim / 2);
    results_ = Must(device_.Allocate(rows * sizeof(RowResult), MemoryKind::kHostVisible, "bench"));

    const auto start = std::chrono::steady_clock::now();
    Add(UploadOp{pinned, inputs, input_bytes}, -1, "upload");
    Add(MetadataOp{device_rows, meta_, tables, rows_, context_, s.vocab}, -1, "metadata");
    WeightView embedding = Weight(s.vocab, s.hidden), head = embedding;
    if (!s.tied) {
      bytes_ = 0;  // a step reads single rows of it
      head = Weight(s.vocab, s.hidden);
    }
    Add(EmbedOp{meta_, embedding, x, tables, rows_}, -1, "embed");
    for (int32_t l = 0; l < s.layers; ++l) {
      const size_t cache =
          static_cast<size_t>(pages) * s.kv_heads * kPageTokens * s.head_dim * SizeOf(dtype_);
      KvView kv = {Random(cache), Random(cache), tables.page_table, max_pages,  pages,
                   kPageShift,    kPageTokens,   s.kv_heads,        s.head_dim, dtype_};
      bytes_ += 2.0 * rows_ * s.kv_heads * context_ * s.head_dim * SizeOf(dtype_);
      AddLinear(l, "qkv", x, DType::kF32, norm, Weight(qkv_width, s.hidden), Epilogue::kStore, qkv,
                DType::kF32);
      Add(AttentionPrepOp{meta_, qkv, nullptr, nullptr, 1e-5f, cos, sin, s.head_dim, false,
                          s.q_heads, q, kv, rows_},
          l, "prep");
      Add(AttentionOp{meta_, q, kv, s.q_heads, 1.0f / 8.0f, -1, 0.0f, nullptr, nullptr, 0, 0,
                      attended, act, rows_, Phase::kDecode, context_, nullptr, 0},
          l, "attention");
      AddLinear(l, "out", attended, act, nullptr, Weight(s.hidden, q_width), Epilogue::kResidual, x,
                DType::kF32);
      AddLinear(l, "gate-up", x, DType::kF32, norm, Weight(int64_t{2} * s.ff, s.hidden),
                Epilogue::kSiluMul, hidden, act);
      AddLinear(l, "down", hidden, act, nullptr, Weight(s.hidden, s.ff), Epilogue::kResidual, x,
                DType::kF32);
    }
    AddLinear(-1, "head", x, DType::kF32, norm, head, Epilogue::kStore, logits, DType::kF32);
    Add(SampleOp{meta_, device_rows, reinterpret_cast<const StepInputsHeader*>(inputs), logits,
                 s.vocab, tables, s.layers, results_.data<RowResult>(), rows_, nullptr, 0},
        -1, "sample");
    Must(device_.Synchronize());
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::printf("%s: uploaded %.2f GB in %.2f s, %.2f GB/s\n", s.name, uploaded_ / 1e9, seconds,
                uploaded_ / 1e9 / seconds);
  }

  std::unique_ptr<Graph> Capture(const std::vector<OpCall>& calls) {
    Must(device_.BeginCapture());
    for (const OpCall& call : calls) Must(device_.Run(call));
    return Must(device_.EndCapture());
  }

  // Median seconds a replay.
  double Time(const std::vector<OpCall>& calls) {
    const std::unique_ptr<Graph> graph = Capture(calls);
    std::vector<double> seconds;
    for (int run = 0; run < kRuns + 1; ++run) {
      Must(device_.Synchronize());
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < kReplays; ++i) Must(device_.Replay(*graph));
      Must(device_.Synchronize());
      if (run > 0) {  // the first warms up
        seconds.push_back(
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() /
            kReplays);
      }
    }
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
  }

  void PrintOps() {
    std::vector<std::string> order;
    std::map<std::string, std::vector<OpCall>> by_label;
    for (const OpCall& call : calls_) {
      if (by_label.count(call.label) == 0) order.push_back(call.label);
      by_label[call.label].push_back(call);
    }
    double total = 0;
    for (const std::string& label : order) {
      const std::vector<OpCall>& calls = by_label[label];
      const double seconds = Time(calls);
      double bytes = 0;
      for (const OpCall& call : calls) {
        if (const auto* op = std::get_if<LinearOp>(&call.params)) {
          bytes +=
              static_cast<double>(device_.ops().packed_bytes(dtype_, op->weight.n, op->weight.k));
        } else if (std::holds_alternative<AttentionOp>(call.params)) {
          bytes += 2.0 * rows_ * shape_.kv_heads * context_ * shape_.head_dim * SizeOf(dtype_);
        }
      }
      total += seconds;
      std::printf("  %-10s %3zu calls  %8.2f us a call  %8.1f us a step  %7.1f GB/s\n",
                  label.c_str(), calls.size(), seconds * 1e6 / static_cast<double>(calls.size()),
                  seconds * 1e6, bytes / seconds / 1e9);
    }
    std::printf("  sum of ops alone %.1f us\n", total * 1e6);
    std::fflush(stdout);
  }

  Device& device_;
  const Shape& shape_;
  int32_t rows_, context_;
  DType dtype_;
  std::vector<char> template_;
  std::vector<Buffer> buffers_;
  Buffer results_;
  RowMeta* meta_ = nullptr;
  std::vector<OpCall> calls_;
  double bytes_ = 0, uploaded_ = 0;
};

int Main(int argc, char** argv) {
  bool per_op = false;
  std::vector<std::string> specs;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--ops") == 0) {
      per_op = true;
    } else {
      specs.emplace_back(argv[i]);
    }
  }
  if (specs.empty()) specs = {"1b:1:1024", "8b:1:1024"};
  if (const std::string reason = CudaUnavailableReason(); !reason.empty()) {
    std::printf("skipped: %s\n", reason.c_str());
    return 0;
  }
  const std::unique_ptr<Device> device = Must(CreateCudaDevice(0));
  std::printf("%s, %d SMs\n", device->info().name.c_str(), device->info().compute_units);
  for (const std::string& spec : specs) {
    std::istringstream in(spec);
    std::string name, rows, context, dtype = "bf16";
    std::getline(in, name, ':') && std::getline(in, rows, ':') && std::getline(in, context, ':');
    if (!std::getline(in, dtype, ':')) dtype = "bf16";
    const auto* shape = std::find_if(std::begin(kShapes), std::end(kShapes),
                                     [&](const Shape& s) { return name == s.name; });
    if (shape == std::end(kShapes) || std::atoi(rows.c_str()) < 1 ||
        std::atoi(context.c_str()) < 1) {
      std::fprintf(stderr,
                   "expected SHAPE:ROWS:CONTEXT[:DTYPE] with SHAPE 135m, 1b or 8b, got '%s'\n",
                   spec.c_str());
      return 2;
    }
    const DType type = dtype == "f32" ? DType::kF32 : dtype == "f16" ? DType::kF16 : DType::kBF16;
    StepBench bench(*device, *shape, std::atoi(rows.c_str()), std::atoi(context.c_str()), type);
    bench.Run(per_op);
  }
  return 0;
}

}  // namespace
}  // namespace latchd

int main(int argc, char** argv) { return latchd::Main(argc, argv); }
