#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/api/dtype.h"
#include "latchd/v1/attention.pb.h"

// Tensors of the wire: their checks and their elements. Errors are INVALID_ARGUMENT and read
// "query.shape: expected [2, 1, 64], got [2, 64]".

namespace latchd {

// One entry of an expected shape: a size, or anything in min..max under a name.
struct Extent {
  Extent(int64_t size) : min(size), max(size) {}  // NOLINT: an exact size reads as a number
  Extent(std::string name, int64_t min, int64_t max) : name(std::move(name)), min(min), max(max) {}

  std::string name;  // empty: exactly `min`
  int64_t min, max;
};

template <typename Got>
absl::Status BadField(const std::string& field, const std::string& expected, const Got& got) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": expected ", expected, ", got ", got));
}

// "f32", "f16", "bf16", "i32", "i64", "no dtype", or "dtype 7" for a number outside the list.
std::string DTypeName(v1::ElementType dtype);
v1::ElementType ToElementType(DType dtype);
// Of a floating type; nothing for the others.
std::optional<DType> ToDType(v1::ElementType dtype);

std::string ShapeText(const v1::Tensor& tensor);  // "[2, 1, 64]"

// Product of non-negative factors; nothing when it does not fit int64.
std::optional<int64_t> Product(const std::vector<int64_t>& factors);

// The dtype is one of `dtypes`, the shape matches, and data has exactly product(shape) elements.
absl::Status CheckTensor(const v1::Tensor& tensor, const std::string& field,
                         const std::vector<v1::ElementType>& dtypes,
                         const std::vector<Extent>& shape);
// Dtype alone, and the amount of data alone: for shapes that are judged in their own words.
absl::Status CheckTensorType(const v1::Tensor& tensor, const std::string& field,
                             const std::vector<v1::ElementType>& dtypes);
absl::Status CheckTensorData(const v1::Tensor& tensor, const std::string& field);

// The elements. REQUIRES: the tensor passed its check.
std::vector<float> Floats(const v1::Tensor& tensor);  // f32, f16 or bf16, widened
std::vector<int32_t> Int32s(const v1::Tensor& tensor);
std::vector<int64_t> Int64s(const v1::Tensor& tensor);

}  // namespace latchd
