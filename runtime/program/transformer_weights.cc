#include "runtime/program/transformer_weights.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/program/rope_table.h"

namespace latchd {
namespace {

constexpr int64_t kBatchBytes = int64_t{16} << 20;   // read between two reports; the staging buffer
constexpr int64_t kPieceBytes = int64_t{128} << 10;  // read by one thread at a time
constexpr int64_t kMaxThreads = 16;                  // more do not read memory faster
constexpr int64_t kPackAlignRows = 16;               // PackOp::row_begin
constexpr int64_t kGateUpInterleave = 8;             // Epilogue::kSiluMul
constexpr int64_t kMatrixAlignBytes = 256;           // what an allocation of its own would have

// A run of consecutive rows of one file tensor.
struct RowRun {
  WeightRole role;
  int64_t layer;
  int64_t row_begin;
  int64_t rows;
};

// A packed matrix: `runs` one below the other.
struct Matrix {
  std::vector<RowRun> runs;
  WeightView* view;
};

// What one thread reads at a time.
struct Piece {
  RowRun run;
  std::byte* out;
};

int64_t Bytes(const WeightView& view) {
  return view.n * view.k * static_cast<int64_t>(SizeOf(view.dtype));
}

}  // namespace

#define RETURN_IF_ERROR(expression)                                         \
  do {                                                                      \
    if (absl::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)

// Collects every matrix, allocates them together (huge pages, where the system has them, want one
// large allocation), then reads them in batches: straight into place where the backend's layout is
// row-major, through a pinned staging buffer and PackOps where it is not.
class WeightLoader {
 public:
  WeightLoader(const ModelSource& source, Device& device, TransformerWeights& weights,
               const TransformerWeights::Progress& progress)
      : source_(source), device_(device), weights_(weights), progress_(progress) {}

  absl::Status LoadAll() {
    const ModelConfig& config = weights_.config_;
    RETURN_IF_ERROR(Stacked({WeightRole::kEmbedding}, 0, weights_.embedding));
    if (!config.tied_embeddings)
      RETURN_IF_ERROR(Stacked({WeightRole::kOutputHead}, 0, weights_.head));
    const float* final_norm = nullptr;
    RETURN_IF_ERROR(Vector({WeightRole::kFinalNorm}, 0, final_norm));
    weights_.final_norm = const_cast<float*>(final_norm);

    weights_.layers.resize(config.layers);
    for (int64_t layer = 0; layer < config.layers; ++layer) RETURN_IF_ERROR(Layer(layer));
    RETURN_IF_ERROR(Rope());
    RETURN_IF_ERROR(AllocateMatrices());
    RETURN_IF_ERROR(ReadMatrices());
    if (config.tied_embeddings) weights_.head = weights_.embedding;
    return absl::OkStatus();
  }

 private:
  absl::Status Layer(int64_t layer) {
    using enum WeightRole;
    LayerWeights& out = weights_.layers[layer];
    RETURN_IF_ERROR(Vector({kAttentionNorm}, layer, out.attention_norm));
    RETURN_IF_ERROR(Stacked({kQ, kK, kV}, layer, out.qkv));
    RETURN_IF_ERROR(Vector({kQBias, kKBias, kVBias}, layer, out.qkv_bias));
    RETURN_IF_ERROR(Vector({kQNorm}, layer, out.q_norm));
    RETURN_IF_ERROR(Vector({kKNorm}, layer, out.k_norm));
    RETURN_IF_ERROR(Stacked({kAttentionOutput}, layer, out.output));
    RETURN_IF_ERROR(Vector({kAttentionOutputBias}, layer, out.output_bias));
    RETURN_IF_ERROR(Vector({kMlpNorm}, layer, out.mlp_norm));
    RETURN_IF_ERROR(GateUp(layer, out));
    RETURN_IF_ERROR(Stacked({kDown}, layer, out.down));
    return Vector({kDownBias}, layer, out.down_bias);
  }

  absl::Status Stacked(const std::vector<WeightRole>& roles, int64_t layer, WeightView& out) {
    std::vector<RowRun> runs;
    int64_t columns = 0;
    for (const WeightRole role : roles) {
      absl::StatusOr<WeightShape> shape = source_.Shape(role, layer);
      if (!shape.ok()) return shape.status();
      runs.push_back({role, layer, 0, shape->rows});
      columns = shape->columns;
    }
    return Add(std::move(runs), columns, out);
  }

  // Gate and up rows alternate in groups of 8, so that one tile of the kernel holds both halves of
  // silu(gate) * up.
  absl::Status GateUp(int64_t layer, LayerWeights& out) {
    const ModelConfig& config = weights_.config_;
    if (config.feed_forward % kGateUpInterleave != 0) {
      return absl::UnimplementedError(absl::StrCat(
          "feed_forward (intermediate_size): expected a multiple of 8, got ", config.feed_forward));
    }
    std::vector<RowRun> runs;
    for (int64_t row = 0; row < config.feed_forward; row += kGateUpInterleave) {
      runs.push_back({WeightRole::kGate, layer, row, kGateUpInterleave});
      runs.push_back({WeightRole::kUp, layer, row, kGateUpInterleave});
    }
    RETURN_IF_ERROR(Add(std::move(runs), config.hidden, out.gate_up));
    if (!source_.Has(WeightRole::kGateBias, layer)) return absl::OkStatus();

    std::vector<float> gate(config.feed_forward), up(config.feed_forward), both;
    RETURN_IF_ERROR(source_.ReadRows(WeightRole::kGateBias, layer, 0, 1, DType::kF32, gate.data()));
    RETURN_IF_ERROR(source_.ReadRows(WeightRole::kUpBias, layer, 0, 1, DType::kF32, up.data()));
    for (int64_t row = 0; row < config.feed_forward; row += kGateUpInterleave) {
      both.insert(both.end(), gate.begin() + row, gate.begin() + row + kGateUpInterleave);
      both.insert(both.end(), up.begin() + row, up.begin() + row + kGateUpInterleave);
    }
    return Floats(both, out.gate_up_bias);
  }

  absl::Status Add(std::vector<RowRun> runs, int64_t columns, WeightView& out) {
    int64_t rows = 0;
    for (const RowRun& run : runs) rows += run.rows;
    out = {nullptr, weights_.dtype_, rows, columns};
    if (Bytes(out) / rows * kPackAlignRows > kBatchBytes) {
      return absl::UnimplementedError(
          absl::StrCat("matrix of ", columns, " columns is wider than the loader takes"));
    }
    matrices_.push_back({std::move(runs), &out});
    total_bytes_ += Bytes(out);
    return absl::OkStatus();
  }

  absl::Status AllocateMatrices() {
    std::vector<size_t> offsets;
    size_t bytes = 0;
    for (const Matrix& matrix : matrices_) {
      const WeightView& view = *matrix.view;
      offsets.push_back(bytes);
      const size_t packed = device_.ops().packed_bytes(view.dtype, view.n, view.k);
      bytes += (packed + kMatrixAlignBytes - 1) / kMatrixAlignBytes * kMatrixAlignBytes;
    }
    absl::StatusOr<Buffer> buffer = device_.Allocate(bytes, MemoryKind::kDevice, "weights");
    if (!buffer.ok()) return buffer.status();
    for (size_t i = 0; i < matrices_.size(); ++i)
      matrices_[i].view->data = buffer->data<std::byte>() + offsets[i];
    weights_.buffers_.push_back(*std::move(buffer));
    return absl::OkStatus();
  }

  absl::Status ReadMatrices() {
    if (!in_place()) {
      absl::StatusOr<Buffer> staging =
          device_.Allocate(kBatchBytes, MemoryKind::kPinned, "staging");
      if (!staging.ok()) return staging.status();
      staging_ = *std::move(staging);
    }
    for (const Matrix& matrix : matrices_) RETURN_IF_ERROR(AddToBatches(matrix));
    return FinishBatch();
  }

  // Cuts a matrix where the batch is full, at rows that PackOp accepts.
  absl::Status AddToBatches(const Matrix& matrix) {
    const WeightView& view = *matrix.view;
    const int64_t row_bytes = Bytes(view) / view.n;
    auto run = matrix.runs.begin();
    int64_t run_done = 0;
    for (int64_t row = 0; row < view.n;) {
      const int64_t room = (kBatchBytes - batch_bytes_) / row_bytes;
      int64_t count = view.n - row;
      if (count > room) count = room / kPackAlignRows * kPackAlignRows;
      if (count == 0) {
        RETURN_IF_ERROR(FinishBatch());
        continue;
      }
      // The weights are ours to fill until Load returns them.
      std::byte* out = in_place()
                           ? static_cast<std::byte*>(const_cast<void*>(view.data)) + row * row_bytes
                           : staging_.data<std::byte>() + batch_bytes_;
      if (!in_place()) {
        packs_.push_back(
            {out, const_cast<void*>(view.data), view.dtype, view.n, view.k, row, count});
      }
      for (int64_t filled = 0; filled < count;) {
        const int64_t most = std::max<int64_t>(kPieceBytes / row_bytes, 1);
        const int64_t take = std::min({run->rows - run_done, count - filled, most});
        pieces_.push_back(
            {{run->role, run->layer, run->row_begin + run_done, take}, out + filled * row_bytes});
        filled += take;
        run_done += take;
        if (run_done == run->rows) {
          ++run;
          run_done = 0;
        }
      }
      row += count;
      batch_bytes_ += count * row_bytes;
    }
    return absl::OkStatus();
  }

  absl::Status FinishBatch() {
    RETURN_IF_ERROR(ReadPieces());
    for (const PackOp& pack : packs_) RETURN_IF_ERROR(device_.Run({pack, -1, "pack"}));
    // The device reads the staging buffer until the packs have run.
    if (!packs_.empty()) RETURN_IF_ERROR(device_.Synchronize());
    source_.ReleasePages();
    done_bytes_ += batch_bytes_;
    if (progress_) progress_(done_bytes_, total_bytes_);
    pieces_.clear();
    packs_.clear();
    batch_bytes_ = 0;
    return absl::OkStatus();
  }

  // Dequantising and first touching the memory are the slow parts of loading: threads share them.
  absl::Status ReadPieces() {
    const int64_t cores = std::max<int64_t>(std::thread::hardware_concurrency(), 1);
    std::vector<absl::Status> results(std::min(cores, kMaxThreads));
    std::atomic<size_t> next = 0;
    const auto read = [&](absl::Status& result) {
      for (size_t i = next++; i < pieces_.size() && result.ok(); i = next++) {
        const auto& [run, out] = pieces_[i];
        result =
            source_.ReadRows(run.role, run.layer, run.row_begin, run.rows, weights_.dtype_, out);
      }
    };
    {
      std::vector<std::jthread> helpers;
      for (size_t t = 1; t < results.size(); ++t)
        helpers.emplace_back([&, t] { read(results[t]); });
      read(results[0]);
    }
    for (const absl::Status& result : results) RETURN_IF_ERROR(result);
    return absl::OkStatus();
  }

  // One f32 vector, or several end to end; leaves `out` null when the model has none.
  absl::Status Vector(const std::vector<WeightRole>& roles, int64_t layer, const float*& out) {
    std::vector<float> values;
    for (const WeightRole role : roles) {
      if (!source_.Has(role, layer)) return absl::OkStatus();
      absl::StatusOr<WeightShape> shape = source_.Shape(role, layer);
      if (!shape.ok()) return shape.status();
      const size_t at = values.size();
      values.resize(at + shape->rows * shape->columns);
      RETURN_IF_ERROR(
          source_.ReadRows(role, layer, 0, shape->rows, DType::kF32, values.data() + at));
    }
    return Floats(values, out);
  }

  absl::Status Floats(const std::vector<float>& values, const float*& out) {
    const size_t bytes = values.size() * sizeof(float);
    absl::StatusOr<Buffer> buffer = device_.Allocate(bytes, MemoryKind::kDevice, "weights");
    if (!buffer.ok()) return buffer.status();
    out = buffer->data<float>();
    RETURN_IF_ERROR(device_.Upload(buffer->data(), values.data(), bytes));
    RETURN_IF_ERROR(device_.Synchronize());
    weights_.buffers_.push_back(*std::move(buffer));
    return absl::OkStatus();
  }

  absl::Status Rope() {
    const RopeTable table = MakeRopeTable(weights_.config_, weights_.rotary_rows_);
    RETURN_IF_ERROR(Floats(table.cos, weights_.rope_cos));
    return Floats(table.sin, weights_.rope_sin);
  }

  bool in_place() const { return device_.ops().pack == nullptr; }

  const ModelSource& source_;
  Device& device_;
  TransformerWeights& weights_;
  const TransformerWeights::Progress& progress_;
  std::vector<Matrix> matrices_;
  Buffer staging_;  // empty when in_place()
  // The batch being filled: what to read, then what to pack.
  std::vector<Piece> pieces_;
  std::vector<PackOp> packs_;
  int64_t batch_bytes_ = 0;
  int64_t done_bytes_ = 0;
  int64_t total_bytes_ = 0;  // of all matrices, as read
};

absl::StatusOr<std::unique_ptr<TransformerWeights>> TransformerWeights::Load(
    const ModelSource& source, Device& device, DType dtype, int64_t rotary_rows,
    const Progress& progress) {
  auto weights = std::make_unique<TransformerWeights>();
  weights->config_ = source.config();
  weights->dtype_ = dtype;
  weights->rotary_rows_ = rotary_rows;
  if (absl::Status status = WeightLoader(source, device, *weights, progress).LoadAll();
      !status.ok())
    return status;
  return weights;
}

}  // namespace latchd
