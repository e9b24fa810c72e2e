#include "server/attention_tensor.h"

#include <bit>
#include <cstring>

#include "absl/strings/str_join.h"
#include "kernels/api/convert.h"

namespace latchd {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors travel little-endian");

int64_t ElementBytes(v1::ElementType dtype) {
  switch (dtype) {
    case v1::ELEMENT_TYPE_F32:
    case v1::ELEMENT_TYPE_I32: return 4;
    case v1::ELEMENT_TYPE_F16:
    case v1::ELEMENT_TYPE_BF16: return 2;
    case v1::ELEMENT_TYPE_I64: return 8;
    default: return 0;
  }
}

std::string Text(const std::vector<Extent>& shape) {
  std::vector<std::string> names;
  std::string bounds;
  for (const Extent& extent : shape) {
    names.push_back(extent.name.empty() ? absl::StrCat(extent.min) : extent.name);
    if (extent.name.empty()) continue;
    absl::StrAppend(&bounds, bounds.empty() ? " with " : " and ", extent.min, " <= ", extent.name,
                    " <= ", extent.max);
  }
  return absl::StrCat("[", absl::StrJoin(names, ", "), "]", bounds);
}

template <typename T>
std::vector<T> Elements(const v1::Tensor& tensor) {
  std::vector<T> out(tensor.data().size() / sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), tensor.data().data(), out.size() * sizeof(T));
  return out;
}

}  // namespace

std::string DTypeName(v1::ElementType dtype) {
  switch (dtype) {
    case v1::ELEMENT_TYPE_UNSPECIFIED: return "no dtype";
    case v1::ELEMENT_TYPE_F32: return "f32";
    case v1::ELEMENT_TYPE_F16: return "f16";
    case v1::ELEMENT_TYPE_BF16: return "bf16";
    case v1::ELEMENT_TYPE_I32: return "i32";
    case v1::ELEMENT_TYPE_I64: return "i64";
    default: return absl::StrCat("dtype ", static_cast<int>(dtype));
  }
}

v1::ElementType ToElementType(DType dtype) {
  switch (dtype) {
    case DType::kF32: return v1::ELEMENT_TYPE_F32;
    case DType::kF16: return v1::ELEMENT_TYPE_F16;
    case DType::kBF16: return v1::ELEMENT_TYPE_BF16;
  }
  return v1::ELEMENT_TYPE_UNSPECIFIED;
}

std::optional<DType> ToDType(v1::ElementType dtype) {
  switch (dtype) {
    case v1::ELEMENT_TYPE_F32: return DType::kF32;
    case v1::ELEMENT_TYPE_F16: return DType::kF16;
    case v1::ELEMENT_TYPE_BF16: return DType::kBF16;
    default: return std::nullopt;
  }
}

std::string ShapeText(const v1::Tensor& tensor) {
  return absl::StrCat("[", absl::StrJoin(tensor.shape(), ", "), "]");
}

std::optional<int64_t> Product(const std::vector<int64_t>& factors) {
  int64_t product = 1;
  for (const int64_t factor : factors) {
    if (factor == 0) return 0;  // whatever the others are
  }
  for (const int64_t factor : factors) {
    if (factor < 0 || __builtin_mul_overflow(product, factor, &product)) return std::nullopt;
  }
  return product;
}

absl::Status CheckTensorType(const v1::Tensor& tensor, const std::string& field,
                             const std::vector<v1::ElementType>& dtypes) {
  std::vector<std::string> names;
  for (const v1::ElementType dtype : dtypes) {
    if (tensor.dtype() == dtype) return absl::OkStatus();
    names.push_back(DTypeName(dtype));
  }
  return BadField(absl::StrCat(field, ".dtype"), absl::StrJoin(names, " or "),
                  DTypeName(tensor.dtype()));
}

absl::Status CheckTensorData(const v1::Tensor& tensor, const std::string& field) {
  std::vector<int64_t> factors(tensor.shape().begin(), tensor.shape().end());
  factors.push_back(ElementBytes(tensor.dtype()));
  const auto bytes = Product(factors);
  const std::string shape = ShapeText(tensor);
  if (!bytes) {
    return BadField(absl::StrCat(field, ".shape"), "sizes >= 0 whose product fits 64 bits", shape);
  }
  if (static_cast<uint64_t>(*bytes) == tensor.data().size()) return absl::OkStatus();
  return BadField(
      absl::StrCat(field, ".data"),
      absl::StrCat(*bytes, " bytes for ", DTypeName(tensor.dtype()), " of shape ", shape),
      tensor.data().size());
}

absl::Status CheckTensor(const v1::Tensor& tensor, const std::string& field,
                         const std::vector<v1::ElementType>& dtypes,
                         const std::vector<Extent>& shape) {
  absl::Status status = CheckTensorType(tensor, field, dtypes);
  if (!status.ok()) return status;
  bool fits = static_cast<size_t>(tensor.shape_size()) == shape.size();
  for (size_t i = 0; fits && i < shape.size(); ++i) {
    const int64_t size = tensor.shape(static_cast<int>(i));
    fits = size >= shape[i].min && size <= shape[i].max;
  }
  // A hostile rank would make a long message; nothing has more than four sizes.
  if (!fits) {
    const std::string got =
        tensor.shape_size() <= 8 ? ShapeText(tensor) : absl::StrCat("rank ", tensor.shape_size());
    return BadField(absl::StrCat(field, ".shape"), Text(shape), got);
  }
  return CheckTensorData(tensor, field);
}

std::vector<float> Floats(const v1::Tensor& tensor) {
  const auto dtype = ToDType(tensor.dtype());
  if (!dtype) return {};
  std::vector<float> out(tensor.data().size() / SizeOf(*dtype));
  if (!out.empty()) ConvertToF32(*dtype, tensor.data().data(), out.data(), out.size());
  return out;
}

std::vector<int32_t> Int32s(const v1::Tensor& tensor) { return Elements<int32_t>(tensor); }
std::vector<int64_t> Int64s(const v1::Tensor& tensor) { return Elements<int64_t>(tensor); }

}  // namespace latchd
