#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/api/dtype.h"
#include "runtime/model/model_config.h"

namespace latchd {

// What a tensor is for, whatever the file calls it.
enum class WeightRole : uint8_t {
  kEmbedding,      // [vocab, hidden]
  kOutputHead,     // [vocab, hidden]; absent when tied
  kFinalNorm,      // [hidden]
  kAttentionNorm,  // [hidden]
  kMlpNorm,        // [hidden]
  kQ,
  kK,
  kV,  // [heads * head_dim, hidden]
  kQBias,
  kKBias,
  kVBias,
  kQNorm,
  kKNorm,                // [head_dim]
  kAttentionOutput,      // [hidden, q_heads * head_dim]
  kAttentionOutputBias,  // [hidden]
  kGate,
  kUp,    // [feed_forward, hidden]
  kDown,  // [hidden, feed_forward]
  kGateBias,
  kUpBias,
  kDownBias,
};
std::string_view Name(WeightRole role);

struct WeightShape {
  int64_t rows = 0;  // outputs; 1 for vectors
  int64_t columns = 0;
};

// An opened model: a Hugging Face folder or a GGUF file, mapped, with every header validated.
// Open() proves that every tensor the architecture needs is there with the right shape and inside
// the file, and that nothing unknown is, so that ReadRows cannot meet a surprise. Thread-safe after
// Open.
class ModelSource {
 public:
  virtual ~ModelSource() = default;

  virtual const ModelConfig& config() const = 0;
  virtual bool Has(WeightRole role, int64_t layer) const = 0;
  // NOT_FOUND when absent. `layer` is ignored for roles outside layers.
  virtual absl::StatusOr<WeightShape> Shape(WeightRole role, int64_t layer) const = 0;
  // Writes rows [row_begin, row_begin + rows) as row-major `as`, dequantised or converted (round to
  // nearest even).
  virtual absl::Status ReadRows(WeightRole role, int64_t layer, int64_t row_begin, int64_t rows,
                                DType as, void* out) const = 0;
  // Gives back the memory of what was read so far; reading it again brings it back from the files.
  virtual void ReleasePages() const = 0;
  virtual size_t file_bytes() const = 0;
  // SHA-256 (hex) over the config and every tensor's name, shape, type, size and first 256 bytes:
  // the identity used by snapshots.
  virtual std::string fingerprint() const = 0;
  // The tokenizer.json text, or empty. GGUF files carry their tokenizer in metadata: see GgufFile
  // at path().
  virtual std::string tokenizer_json() const = 0;
  // Path of the GGUF file, or of the folder.
  virtual const std::string& path() const = 0;
};

// `path`: a folder with config.json, or a .gguf file. NOT_FOUND, INVALID_ARGUMENT (malformed,
// naming file and field), UNIMPLEMENTED (an architecture, tensor or quantisation that latchd does
// not know, by name).
absl::StatusOr<std::unique_ptr<ModelSource>> OpenModel(const std::string& path);

// Random weights of a given shape, for benchmarks: N(0, 0.02), norms near 1. Deterministic in
// `seed`.
std::unique_ptr<ModelSource> RandomModel(const ModelConfig& config, uint64_t seed);

}  // namespace latchd
