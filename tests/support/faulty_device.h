#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "runtime/device/device.h"

namespace latchd::testing {

// A Device that passes every call on to another one and fails the Nth call of a kind, as a broken
// GPU would. `packs`: weights go through a pack op, as on CUDA, though the layout is row-major.
// With a sticky fault, fault() stays set and every later call fails too, which is what CUDA does.
class FaultyDevice final : public Device {
 public:
  enum class Kind : uint8_t { kAllocate, kUpload, kDownload, kRun, kReplay, kSynchronize };

  explicit FaultyDevice(std::unique_ptr<Device> inner, bool packs = false)
      : inner_(std::move(inner)), ops_(inner_->ops()) {
    if (packs) ops_.pack = Pack;
  }

  // The `nth` call of `kind` from now fails; 1 is the next one.
  void FailOn(Kind kind, int64_t nth, bool sticky = false) {
    countdown_[static_cast<size_t>(kind)] = nth;
    sticky_ = sticky;
  }
  int64_t calls(Kind kind) const { return calls_[static_cast<size_t>(kind)]; }
  // Bytes of all labels that are allocated now.
  size_t allocated_bytes() const {
    size_t total = 0;
    for (const auto& [label, bytes] : allocations()) total += bytes;
    return total;
  }

  const DeviceInfo& info() const override { return inner_->info(); }
  const OpTable& ops() const override { return ops_; }
  bool capturing() const override { return inner_->capturing(); }
  absl::Status fault() const override { return fault_.ok() ? inner_->fault() : fault_; }

  absl::Status Upload(void* destination, const void* source, size_t bytes) override {
    absl::Status status = Count(Kind::kUpload, "upload");
    return status.ok() ? inner_->Upload(destination, source, bytes) : status;
  }
  absl::Status Download(void* destination, const void* source, size_t bytes) override {
    absl::Status status = Count(Kind::kDownload, "download");
    return status.ok() ? inner_->Download(destination, source, bytes) : status;
  }
  absl::Status Fill(void* destination, uint8_t byte, size_t bytes) override {
    return fault_.ok() ? inner_->Fill(destination, byte, bytes) : fault_;
  }
  absl::Status Run(const OpCall& call) override {
    if (absl::Status status = Count(Kind::kRun, "run"); !status.ok()) return status;
    const auto* pack = std::get_if<PackOp>(&call.params);
    if (pack == nullptr || ops_.pack == nullptr) return inner_->Run(call);
    return ops_.pack(*pack, nullptr).ok() ? absl::OkStatus() : absl::InternalError("pack");
  }
  absl::Status BeginCapture() override { return fault_.ok() ? inner_->BeginCapture() : fault_; }
  absl::StatusOr<std::unique_ptr<Graph>> EndCapture() override { return inner_->EndCapture(); }
  absl::Status Replay(const Graph& graph) override {
    absl::Status status = Count(Kind::kReplay, "replay");
    return status.ok() ? inner_->Replay(graph) : status;
  }
  absl::Status Synchronize() override {
    absl::Status status = Count(Kind::kSynchronize, "synchronize");
    return status.ok() ? inner_->Synchronize() : status;
  }

 protected:
  absl::StatusOr<void*> AllocateRaw(size_t bytes, MemoryKind kind) override {
    if (absl::Status status = Count(Kind::kAllocate, "allocate"); !status.ok()) return status;
    absl::StatusOr<Buffer> buffer = inner_->Allocate(bytes, kind, "inner");
    if (!buffer.ok()) return buffer.status();
    void* data = buffer->data();
    buffers_.emplace(data, *std::move(buffer));
    return data;
  }
  void FreeRaw(void* data, MemoryKind) override { buffers_.erase(data); }

 private:
  static OpStatus Pack(const PackOp& op, OpStream) {
    const size_t row_bytes = static_cast<size_t>(op.k) * SizeOf(op.dtype);
    EXPECT_EQ(op.row_begin % 16, 0);
    EXPECT_TRUE(op.rows % 16 == 0 || op.row_begin + op.rows == op.n);
    std::memcpy(static_cast<char*>(op.destination) + static_cast<size_t>(op.row_begin) * row_bytes,
                op.source, static_cast<size_t>(op.rows) * row_bytes);
    return OpStatus::Ok();
  }

  absl::Status Count(Kind kind, const char* name) {
    ++calls_[static_cast<size_t>(kind)];
    if (!fault_.ok()) return fault_;
    int64_t& left = countdown_[static_cast<size_t>(kind)];
    if (left == 0 || --left > 0) return absl::OkStatus();
    absl::Status status = absl::InternalError(absl::StrCat("injected fault in ", name));
    if (sticky_) fault_ = status;
    return status;
  }

  std::unique_ptr<Device> inner_;
  OpTable ops_;
  std::unordered_map<void*, Buffer> buffers_;
  std::array<int64_t, 6> calls_ = {};
  std::array<int64_t, 6> countdown_ = {};  // 0: never
  bool sticky_ = false;
  absl::Status fault_;
};

}  // namespace latchd::testing
