#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/api/convert.h"
#include "runtime/model/model_source.h"
#include "runtime/model/sha256.h"
#include "runtime/model/tensor_names.h"

namespace latchd {
namespace {

constexpr float kDeviation = 0.02f;
constexpr int64_t kChunkElements = 2048;

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014).
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Close to N(0, 1): the sum of four uniform 16-bit numbers (Irwin-Hall, variance 4/12), one hash
// each. Fast enough to fill billions of weights, and any element can be made without those before
// it.
float NearlyNormal(uint64_t key, uint64_t index) {
  const uint64_t bits = Mix(key + index * 0x9e3779b97f4a7c15u);
  const auto sum = static_cast<int32_t>((bits & 0xffff) + (bits >> 16 & 0xffff) +
                                        (bits >> 32 & 0xffff) + (bits >> 48));
  constexpr float kScale = 1.7320508f / 65536.0f;
  return static_cast<float>(sum - 131070) * kScale;
}

bool IsNorm(WeightRole role) {
  switch (role) {
    case WeightRole::kFinalNorm:
    case WeightRole::kAttentionNorm:
    case WeightRole::kMlpNorm:
    case WeightRole::kQNorm:
    case WeightRole::kKNorm: return true;
    default: return false;
  }
}

class RandomSource : public ModelSource {
 public:
  RandomSource(ModelConfig config, uint64_t seed)
      : config_(std::move(config)), seed_(seed), path_(absl::StrCat("random:", seed)) {}

  const ModelConfig& config() const override { return config_; }
  const std::string& path() const override { return path_; }
  size_t file_bytes() const override { return 0; }
  std::string tokenizer_json() const override { return ""; }
  void ReleasePages() const override {}

  std::string fingerprint() const override {
    return Sha256Hex(absl::StrCat(path_, " ", config_.architecture, " ", config_.hidden, " ",
                                  config_.layers, " ", config_.q_heads, " ", config_.kv_heads, " ",
                                  config_.head_dim, " ", config_.feed_forward, " ", config_.vocab));
  }

  bool Has(WeightRole role, int64_t layer) const override {
    return IsUsed(role, config_) && (!IsLayerRole(role) || (layer >= 0 && layer < config_.layers));
  }

  absl::StatusOr<WeightShape> Shape(WeightRole role, int64_t layer) const override {
    if (!Has(role, layer)) {
      return absl::NotFoundError(
          absl::StrCat("no ", std::string(Name(role)), " tensor in layer ", layer));
    }
    return ShapeOf(role, config_);
  }

  absl::Status ReadRows(WeightRole role, int64_t layer, int64_t row_begin, int64_t rows, DType as,
                        void* out) const override {
    absl::StatusOr<WeightShape> shape = Shape(role, layer);
    if (!shape.ok()) return shape.status();
    if (row_begin < 0 || rows < 0 || row_begin > shape->rows || rows > shape->rows - row_begin) {
      return absl::InvalidArgumentError(absl::StrCat("rows: expected a range inside ", shape->rows,
                                                     ", got [", row_begin, ", ", row_begin, " + ",
                                                     rows, ")"));
    }
    const auto tensor = static_cast<uint64_t>(IsLayerRole(role) ? layer : 0) * kWeightRoles +
                        static_cast<uint64_t>(role);
    const uint64_t key = Mix(Mix(seed_ + 1) ^ tensor);
    const float centre = IsNorm(role) ? 1.0f : 0.0f;
    const int64_t begin = row_begin * shape->columns, elements = rows * shape->columns;
    float chunk[kChunkElements];
    for (int64_t i = 0; i < elements; i += kChunkElements) {
      const int64_t n = std::min(kChunkElements, elements - i);
      for (int64_t j = 0; j < n; ++j) {
        chunk[j] = centre + kDeviation * NearlyNormal(key, static_cast<uint64_t>(begin + i + j));
      }
      ConvertFromF32(as, chunk, static_cast<char*>(out) + static_cast<size_t>(i) * SizeOf(as),
                     static_cast<size_t>(n));
    }
    return absl::OkStatus();
  }

 private:
  ModelConfig config_;
  uint64_t seed_;
  std::string path_;
};

}  // namespace

std::unique_ptr<ModelSource> RandomModel(const ModelConfig& config, uint64_t seed) {
  return std::make_unique<RandomSource>(config, seed);
}

}  // namespace latchd
