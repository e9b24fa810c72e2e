#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "latchd/v1/attention.pb.h"

// Small valid messages of AttentionService for tests to spoil: batch 2, 3 layers, 4 heads over 2 KV
// heads of 8, capacity 32, f32.

namespace latchd {

inline v1::Tensor ZeroTensor(v1::ElementType dtype, const std::vector<int64_t>& shape) {
  v1::Tensor tensor;
  tensor.set_dtype(dtype);
  size_t bytes = dtype == v1::ELEMENT_TYPE_I64                                     ? 8
                 : dtype == v1::ELEMENT_TYPE_F16 || dtype == v1::ELEMENT_TYPE_BF16 ? 2
                                                                                   : 4;
  for (const int64_t size : shape) {
    tensor.add_shape(size);
    bytes *= static_cast<size_t>(size);
  }
  tensor.set_data(std::string(bytes, '\0'));
  return tensor;
}

template <typename T>
v1::Tensor FilledTensor(v1::ElementType dtype, const std::vector<int64_t>& shape,
                        const std::vector<T>& values) {
  v1::Tensor tensor;
  tensor.set_dtype(dtype);
  for (const int64_t size : shape) tensor.add_shape(size);
  tensor.set_data(
      std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)));
  return tensor;
}

inline v1::Tensor F32Tensor(const std::vector<int64_t>& shape, float value = 0.0f) {
  v1::Tensor tensor = ZeroTensor(v1::ELEMENT_TYPE_F32, shape);
  for (size_t i = 0; i + 4 <= tensor.data().size(); i += 4) {
    std::memcpy(tensor.mutable_data()->data() + i, &value, 4);
  }
  return tensor;
}
inline v1::Tensor I32Tensor(const std::vector<int64_t>& shape, const std::vector<int32_t>& values) {
  return FilledTensor(v1::ELEMENT_TYPE_I32, shape, values);
}
inline v1::Tensor I64Tensor(const std::vector<int64_t>& shape, const std::vector<int64_t>& values) {
  return FilledTensor(v1::ELEMENT_TYPE_I64, shape, values);
}

inline v1::OpenAttentionSessionRequest OpenMessage() {
  v1::OpenAttentionSessionRequest request;
  request.mutable_attributes()->set_num_heads(4);
  request.mutable_attributes()->set_kv_num_heads(2);
  request.mutable_attributes()->set_head_size(8);
  request.set_dtype(v1::ELEMENT_TYPE_F32);
  request.set_batch(2);
  request.set_layers(3);
  request.set_capacity_tokens(32);
  return request;
}

// `s` new tokens on a session of OpenMessage whose rows then hold `total` tokens each.
inline v1::AttentionRequest CallMessage(uint64_t session, int64_t s, int32_t total) {
  v1::AttentionRequest request;
  request.set_session_id(session);
  *request.mutable_query() = F32Tensor({2, s, 32});
  *request.mutable_key() = F32Tensor({2, s, 16});
  *request.mutable_value() = F32Tensor({2, s, 16});
  *request.mutable_seqlens_k() = I32Tensor({2}, {total - 1, total - 1});
  return request;
}

}  // namespace latchd
