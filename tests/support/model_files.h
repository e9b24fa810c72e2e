#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/api/dtype.h"
#include "runtime/model/dequantize.h"
#include "runtime/model/gguf.h"
#include "runtime/model/model_config.h"
#include "runtime/model/model_source.h"

// Writers of model files for tests: well-formed by default, and malformed at a chosen place by
// editing what they return.

namespace latchd::testing {

// A fresh folder, removed with everything in it on destruction.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  std::string path(std::string_view file = "") const;

 private:
  std::filesystem::path path_;
};

// Aborts on failure: a test cannot go on.
void WriteFile(const std::string& path, std::string_view bytes);
std::string ReadFile(const std::string& path);

// Little-endian bytes of a number.
template <typename T>
std::string Bytes(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

struct TestTensor {
  std::string name;
  std::string dtype;           // safetensors: "F32"; ignored by GGUF
  std::vector<int64_t> shape;  // row-major
  std::string data;
  StorageType type = StorageType::kF32;  // GGUF
};

// A .safetensors file of the tensors, in order, without gaps.
std::string SafetensorsBytes(const std::vector<TestTensor>& tensors);
// The same from a header given as text, for headers no writer would make.
std::string SafetensorsBytes(std::string_view header, std::string_view data);
void WriteSafetensors(const std::string& path, const std::vector<TestTensor>& tensors);

// Builds a GGUF file piece by piece.
class GgufWriter {
 public:
  explicit GgufWriter(uint32_t version = 3) : version_(version) {}

  GgufWriter& Uint32(std::string_view key, uint32_t value);
  GgufWriter& Uint64(std::string_view key, uint64_t value);
  GgufWriter& Float32(std::string_view key, float value);
  GgufWriter& Bool(std::string_view key, bool value);
  GgufWriter& String(std::string_view key, std::string_view value);
  GgufWriter& Strings(std::string_view key, const std::vector<std::string>& values);
  GgufWriter& Ints(std::string_view key, const std::vector<int32_t>& values);
  GgufWriter& Floats(std::string_view key, const std::vector<float>& values);
  // A value of any type from its bytes after the key.
  GgufWriter& Raw(std::string_view key, GgufType type, std::string_view value);
  GgufWriter& Tensor(TestTensor tensor);
  // Leaves out a key or tensor added before; REQUIRES: it was.
  GgufWriter& Drop(std::string_view name);

  std::string Build() const;
  // Offset of the bytes that follow a key (its value type) or a tensor's name (its dimension count)
  // in Build().
  size_t OffsetAfter(std::string_view name) const;

 private:
  struct Entry {
    std::string key;
    std::string value;  // with the type
  };
  uint32_t version_;
  std::vector<Entry> entries_;
  std::vector<TestTensor> tensors_;
};

// A config of 2 layers, 64 wide, with a vocabulary of 96 and whatever the architecture adds.
// `architecture`: the name in config.json, e.g. "Qwen2ForCausalLM".
ModelConfig TinyConfig(const std::string& architecture);
// config.json that says the same as `config`.
std::string ConfigJson(const ModelConfig& config);
// The weights of RandomModel(config, seed) under their Hugging Face or GGUF names.
std::vector<TestTensor> TinyTensors(const ModelConfig& config, uint64_t seed, DType dtype,
                                    bool gguf_names);
// Writes a Hugging Face folder (config.json, model.safetensors; no tokenizer) into the existing
// folder `folder`.
void MakeTinyModel(const std::string& folder, const ModelConfig& config, uint64_t seed,
                   DType dtype = DType::kF32);
// The same as a GGUF file; config.architecture decides between "llama", "qwen2" and "qwen3".
GgufWriter TinyGguf(const ModelConfig& config, uint64_t seed, DType dtype = DType::kF32);

}  // namespace latchd::testing
