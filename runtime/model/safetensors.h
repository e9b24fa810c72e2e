#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/model/dequantize.h"
#include "runtime/model/mapped_file.h"

namespace latchd {

struct SafetensorsTensor {
  std::string name;
  std::string dtype;  // as the file says: "BF16"
  std::optional<StorageType>
      type;                    // none for a dtype that latchd does not compute with (I64, F64, ...)
  std::vector<int64_t> shape;  // row-major, slowest dimension first; empty for a scalar
  std::string_view bytes;      // inside the file
};

// A .safetensors file (huggingface/safetensors, "Format"): 8 bytes of header length, a JSON header,
// tensor data. Every size and offset is checked before use, so memory stays proportional to the
// header. Immutable and thread-safe.
class SafetensorsFile {
 public:
  // NOT_FOUND; INVALID_ARGUMENT (malformed: file, field, expected, got); UNIMPLEMENTED (a dtype
  // nobody knows).
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);
  // The same from memory that outlives the result; `name` stands for the path in errors.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Parse(const std::string& name,
                                                                std::string_view bytes);

  const std::vector<SafetensorsTensor>& tensors() const {
    return tensors_;
  }  // in the header's order
  const std::string& name() const { return name_; }
  size_t file_bytes() const { return bytes_.size(); }
  // Null when parsed from memory.
  const MappedFile* mapping() const { return file_.get(); }

 private:
  SafetensorsFile() = default;

  std::unique_ptr<MappedFile> file_;
  std::string name_;
  std::string_view bytes_;
  std::vector<SafetensorsTensor> tensors_;
};

}  // namespace latchd
