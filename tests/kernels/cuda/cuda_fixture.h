#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "runtime/device/cuda_device.h"
#include "tests/support/reference_random.h"

namespace latchd {

// Runs ops on the GPU over mirrors of host data, eagerly and captured. Skips, with the reason,
// where there is no GPU.
class CudaTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!CudaUnavailableReason().empty()) return;
    absl::StatusOr<std::unique_ptr<Device>> device = CreateCudaDevice(0);
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = device->release();
  }
  static void TearDownTestSuite() {
    delete device_;
    device_ = nullptr;
  }
  void SetUp() override {
    if (device_ == nullptr) GTEST_SKIP() << CudaUnavailableReason();
  }
  void TearDown() override {
    if (device_ != nullptr) {
      EXPECT_TRUE(device_->fault().ok()) << device_->fault();
    }
    buffers_.clear();
  }

  static Device& device() { return *device_; }

  void* Raw(size_t bytes, MemoryKind kind = MemoryKind::kDevice) {
    absl::StatusOr<Buffer> buffer = device_->Allocate(bytes, kind, "test");
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    buffers_.push_back(*std::move(buffer));
    return buffers_.back().data();
  }
  // A device copy of host data.
  template <typename T>
  T* Mirror(const std::vector<T>& host) {
    void* data = Raw(host.size() * sizeof(T));
    Put(data, host);
    return static_cast<T*>(data);
  }
  template <typename T>
  void Put(void* destination, const std::vector<T>& host) {
    const absl::Status s = device_->Upload(destination, host.data(), host.size() * sizeof(T));
    EXPECT_TRUE(s.ok()) << s;
  }
  template <typename T>
  std::vector<T> Get(const void* source, size_t count) {
    std::vector<T> host(count);
    const absl::Status s = device_->Download(host.data(), source, count * sizeof(T));
    EXPECT_TRUE(s.ok()) << s;
    return host;
  }

  // Gives the op the workspace it asks for; poisoned, except where the op wants zeros.
  template <typename Op>
  void GiveWorkspace(Op& op, bool zero = false) {
    op.workspace_bytes = device_->ops().workspace_bytes(OpCall{op});
    op.workspace = Raw(op.workspace_bytes);
    if (!zero) {
      EXPECT_TRUE(device_->Fill(op.workspace, 0xff, op.workspace_bytes).ok());
    }
  }

  template <typename Op>
  void RunEager(const Op& op) {
    const absl::Status s = device_->Run(OpCall{op});
    ASSERT_TRUE(s.ok()) << s;
    const absl::Status done = device_->Synchronize();
    ASSERT_TRUE(done.ok()) << done;
  }
  template <typename Op>
  void RunCaptured(const Op& op) {
    ASSERT_TRUE(device_->BeginCapture().ok());
    const absl::Status s = device_->Run(OpCall{op});
    absl::StatusOr<std::unique_ptr<Graph>> graph = device_->EndCapture();
    ASSERT_TRUE(s.ok()) << s;
    ASSERT_TRUE(graph.ok()) << graph.status();
    ASSERT_GE((*graph)->nodes(), 1u);
    ASSERT_TRUE(device_->Replay(**graph).ok());
    const absl::Status done = device_->Synchronize();
    ASSERT_TRUE(done.ok()) << done;
  }

 private:
  static inline Device* device_ = nullptr;
  std::deque<Buffer> buffers_;
};

inline std::vector<float> Decode(DType dtype, const std::vector<char>& bytes) {
  std::vector<float> values(bytes.size() / SizeOf(dtype));
  ConvertToF32(dtype, bytes.data(), values.data(), values.size());
  return values;
}

// Relative to the largest magnitude of `expected`, or to `least_scale` if that is larger: sums of
// different order differ by that scale, also where they happen to cancel.
inline void ExpectNear(const std::vector<float>& expected, const std::vector<float>& got,
                       double tolerance, double least_scale = 1e-6) {
  ASSERT_EQ(expected.size(), got.size());
  double scale = least_scale, worst = 0;
  size_t at = 0;
  for (float v : expected)
    scale = std::max(scale, std::isfinite(v) ? std::abs(static_cast<double>(v)) : 0.0);
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = std::abs(static_cast<double>(expected[i]) - got[i]) / scale;
    if (std::isnan(expected[i]) && std::isnan(got[i])) continue;
    if (!(error <= worst)) worst = error, at = i;
  }
  EXPECT_LE(worst, tolerance) << "element " << at << " of " << expected.size() << ": expected "
                              << expected[at] << ", got " << got[at];
}

// Error of a result computed from operands rounded to `dtype`.
inline double Tolerance(DType dtype) {
  return dtype == DType::kF32 ? 2e-5 : dtype == DType::kF16 ? 4e-3 : 2e-2;
}

inline constexpr DType kAllDTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

}  // namespace latchd
