#include "runtime/program/transformer_weights.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/program/rope_table.h"

namespace latchd {
namespace {

constexpr size_t kStagingBytes = size_t{16} << 20;
constexpr int64_t kPackAlignRows = 16;    // PackOp::row_begin
constexpr int64_t kGateUpInterleave = 8;  // Epilogue::kSiluMul

// A run of consecutive rows of one file tensor inside a packed matrix.
struct RowRun {
  WeightRole role;
  int64_t row_begin;
  int64_t rows;
};

}  // namespace

#define RETURN_IF_ERROR(expression)                                         \
  do {                                                                      \
    if (absl::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)

class WeightLoader {
 public:
  WeightLoader(const ModelSource& source, Device& device, TransformerWeights& weights,
               const TransformerWeights::Progress& progress)
      : source_(source), device_(device), weights_(weights), progress_(progress) {}

  absl::Status LoadAll() {
    const ModelConfig& config = weights_.config_;
    absl::StatusOr<Buffer> staging =
        device_.Allocate(kStagingBytes, MemoryKind::kPinned, "staging");
    if (!staging.ok()) return staging.status();
    staging_ = *std::move(staging);
    total_bytes_ = static_cast<int64_t>(source_.file_bytes());

    RETURN_IF_ERROR(Matrix(WeightRole::kEmbedding, 0, weights_.embedding));
    weights_.head = weights_.embedding;
    if (!config.tied_embeddings) RETURN_IF_ERROR(Matrix(WeightRole::kOutputHead, 0, weights_.head));
    const float* final_norm = nullptr;
    RETURN_IF_ERROR(Vector({WeightRole::kFinalNorm}, 0, final_norm));
    weights_.final_norm = const_cast<float*>(final_norm);

    weights_.layers.resize(config.layers);
    for (int64_t layer = 0; layer < config.layers; ++layer) RETURN_IF_ERROR(Layer(layer));
    return Rope();
  }

 private:
  absl::Status Layer(int64_t layer) {
    using enum WeightRole;
    LayerWeights& out = weights_.layers[layer];
    RETURN_IF_ERROR(Vector({kAttentionNorm}, layer, out.attention_norm));
    RETURN_IF_ERROR(Concatenated({kQ, kK, kV}, layer, out.qkv));
    RETURN_IF_ERROR(Vector({kQBias, kKBias, kVBias}, layer, out.qkv_bias));
    RETURN_IF_ERROR(Vector({kQNorm}, layer, out.q_norm));
    RETURN_IF_ERROR(Vector({kKNorm}, layer, out.k_norm));
    RETURN_IF_ERROR(Matrix(kAttentionOutput, layer, out.output));
    RETURN_IF_ERROR(Vector({kAttentionOutputBias}, layer, out.output_bias));
    RETURN_IF_ERROR(Vector({kMlpNorm}, layer, out.mlp_norm));
    RETURN_IF_ERROR(GateUp(layer, out));
    RETURN_IF_ERROR(Matrix(kDown, layer, out.down));
    return Vector({kDownBias}, layer, out.down_bias);
  }

  absl::Status Matrix(WeightRole role, int64_t layer, WeightView& out) {
    return Concatenated({role}, layer, out);
  }

  absl::Status Concatenated(const std::vector<WeightRole>& roles, int64_t layer, WeightView& out) {
    std::vector<RowRun> runs;
    int64_t columns = 0;
    for (const WeightRole role : roles) {
      absl::StatusOr<WeightShape> shape = source_.Shape(role, layer);
      if (!shape.ok()) return shape.status();
      runs.push_back({role, 0, shape->rows});
      columns = shape->columns;
    }
    return Pack(runs, columns, layer, out);
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
      runs.push_back({WeightRole::kGate, row, kGateUpInterleave});
      runs.push_back({WeightRole::kUp, row, kGateUpInterleave});
    }
    RETURN_IF_ERROR(Pack(runs, config.hidden, layer, out.gate_up));
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

  // Streams `runs` through the staging buffer, a few megabytes at a time, into a packed matrix.
  absl::Status Pack(const std::vector<RowRun>& runs, int64_t columns, int64_t layer,
                    WeightView& out) {
    int64_t rows = 0;
    for (const RowRun& run : runs) rows += run.rows;
    const DType dtype = weights_.dtype_;
    const size_t row_bytes = columns * SizeOf(dtype);
    const int64_t staged_rows =
        static_cast<int64_t>(kStagingBytes / row_bytes) / kPackAlignRows * kPackAlignRows;
    if (staged_rows == 0) {
      return absl::UnimplementedError(
          absl::StrCat("matrix of ", columns, " columns is wider than the loader takes"));
    }
    absl::StatusOr<Buffer> packed = device_.Allocate(
        device_.ops().packed_bytes(dtype, rows, columns), MemoryKind::kDevice, "weights");
    if (!packed.ok()) return packed.status();
    out = {packed->data(), dtype, rows, columns};

    size_t run = 0;
    int64_t run_done = 0;
    for (int64_t begin = 0; begin < rows; begin += staged_rows) {
      const int64_t count = std::min(staged_rows, rows - begin);
      std::vector<std::pair<RowRun, std::byte*>> pieces;
      for (int64_t filled = 0; filled < count;) {
        const int64_t take = std::min(runs[run].rows - run_done, count - filled);
        pieces.push_back({{runs[run].role, runs[run].row_begin + run_done, take},
                          staging_.data<std::byte>() + filled * row_bytes});
        filled += take;
        run_done += take;
        if (run_done == runs[run].rows) {
          ++run;
          run_done = 0;
        }
      }
      RETURN_IF_ERROR(ReadPieces(pieces, layer, row_bytes));
      const PackOp op = {staging_.data(), packed->data(), dtype, rows, columns, begin, count};
      RETURN_IF_ERROR(device_.Run({op, static_cast<int32_t>(layer), "pack"}));
      // The staging buffer is read by the device until the pack has run.
      RETURN_IF_ERROR(device_.Synchronize());
      Report(count * row_bytes);
    }
    for (const RowRun& part : runs) {
      if (part.row_begin == 0) source_.Release(part.role, layer);
    }
    weights_.buffers_.push_back(*std::move(packed));
    return absl::OkStatus();
  }

  // Dequantising is the slow part of loading; a few threads share the pieces, each split by rows.
  absl::Status ReadPieces(std::vector<std::pair<RowRun, std::byte*>>& pieces, int64_t layer,
                          size_t row_bytes) {
    const size_t threads = std::clamp(std::thread::hardware_concurrency(), 1u, 8u);
    std::vector<std::pair<RowRun, std::byte*>> split;
    for (const auto& [run, out] : pieces) {
      const int64_t step = std::max<int64_t>(
          1, pieces.size() > threads ? run.rows : (run.rows + threads - 1) / threads);
      for (int64_t row = 0; row < run.rows; row += step) {
        split.push_back({{run.role, run.row_begin + row, std::min(step, run.rows - row)},
                         out + row * row_bytes});
      }
    }
    std::vector<absl::Status> results(threads);
    {
      std::vector<std::jthread> workers;
      for (size_t t = 0; t < threads; ++t) {
        workers.emplace_back([&, t] {
          for (size_t i = t; i < split.size() && results[t].ok(); i += threads) {
            const RowRun& run = split[i].first;
            results[t] = source_.ReadRows(run.role, layer, run.row_begin, run.rows, weights_.dtype_,
                                          split[i].second);
          }
        });
      }
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

  void Report(size_t bytes) {
    done_bytes_ += static_cast<int64_t>(bytes);
    if (progress_) progress_(done_bytes_, total_bytes_);
  }

  const ModelSource& source_;
  Device& device_;
  TransformerWeights& weights_;
  const TransformerWeights::Progress& progress_;
  Buffer staging_;
  int64_t done_bytes_ = 0;
  int64_t total_bytes_ = 0;
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
