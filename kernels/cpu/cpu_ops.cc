#include "kernels/cpu/ops_internal.h"
#include "kernels/cpu/worker_team.h"

namespace latchd {
namespace {

// The CPU computes in f32 throughout; only weights and KV are narrow, because only they are
// streamed from memory.
DType ActivationDType(DType) { return DType::kF32; }

// Weights stay row-major: each thread reads a contiguous range, which is what the hardware
// prefetchers like best. A panel layout was not needed, because a row's dot products vectorise
// along k.
size_t PackedBytes(DType dtype, int64_t n, int64_t k) {
  return static_cast<size_t>(n) * static_cast<size_t>(k) * SizeOf(dtype);
}

size_t WorkspaceBytes(const OpCall& call) {
  struct Visitor {
    size_t operator()(const LinearOp& op) const { return cpu::LinearWorkspaceBytes(op); }
    size_t operator()(const AttentionOp& op) const { return cpu::AttentionWorkspaceBytes(op); }
    size_t operator()(const SampleOp& op) const { return cpu::SampleWorkspaceBytes(op); }
    size_t operator()(const PackOp&) const { return 0; }
    size_t operator()(const UploadOp&) const { return 0; }
    size_t operator()(const MetadataOp&) const { return 0; }
    size_t operator()(const EmbedOp&) const { return 0; }
    size_t operator()(const AttentionPrepOp&) const { return 0; }
  };
  return std::visit(Visitor{}, call.params);
}

}  // namespace

int SetCpuThreads(int threads) {
  cpu::SetThreads(threads);
  return cpu::Threads();
}

const OpTable& CpuOps() {
  static const OpTable ops = {
      .backend = "cpu",
      .activation_dtype = ActivationDType,
      .pack = nullptr,
      .upload = cpu::Upload,
      .metadata = cpu::Metadata,
      .embed = cpu::Embed,
      .linear = cpu::Linear,
      .attention_prep = cpu::AttentionPrep,
      .attention = cpu::Attention,
      .sample = cpu::Sample,
      .packed_bytes = PackedBytes,
      .workspace_bytes = WorkspaceBytes,
  };
  return ops;
}

}  // namespace latchd
