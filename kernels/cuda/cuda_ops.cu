#include <array>
#include <string>

#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/packed_layout.h"
#include "kernels/cuda/ops_internal.h"

namespace latchd {
namespace cuda {

OpStatus Invalid(std::string message) {
  return OpStatus(OpCode::kInvalidArgument, std::move(message));
}
OpStatus Unsupported(std::string message) {
  return OpStatus(OpCode::kUnsupported, std::move(message));
}

OpStatus WorkspaceTooSmall(const char* op, size_t needed, size_t given) {
  return OpStatus(OpCode::kFailedPrecondition, std::string(op) + " workspace: needs " +
                                                   std::to_string(needed) + " bytes, got " +
                                                   std::to_string(given));
}

OpStatus FromCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return OpStatus::Ok();
  const OpCode code =
      error == cudaErrorMemoryAllocation ? OpCode::kResourceExhausted : OpCode::kDeviceFault;
  return OpStatus(code, std::string(what) + ": " + cudaGetErrorString(error));
}

int SmCount() {
  static std::array<int, 64> counts = {};  // the step loop is the only caller
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device < 0 ||
      device >= static_cast<int>(counts.size()))
    return 1;
  int& count = counts[static_cast<size_t>(device)];
  if (count == 0 &&
      cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
    return 1;
  return count;
}

namespace {

DType ActivationDType(DType compute) { return compute; }

size_t PackedBytes(DType dtype, int64_t n, int64_t k) {
  if (dtype == DType::kF32) return static_cast<size_t>(n) * static_cast<size_t>(k) * sizeof(float);
  return PackedElements(n, k) * SizeOf(dtype);
}

OpStatus Linear(const LinearOp& op, OpStream stream) {
  if (op.rows <= 0) return OpStatus::Ok();
  if (op.epilogue == Epilogue::kSiluMul && op.weight.n % 16 != 0) {
    return Invalid("linear: n of a gated weight must be a multiple of 16, got " +
                   std::to_string(op.weight.n));
  }
  if (op.epilogue == Epilogue::kResidual && op.y_dtype != DType::kF32) {
    return Invalid("linear: a residual output must be f32, got " + std::string(Name(op.y_dtype)));
  }
  if (op.phase == Phase::kPrefill) return LinearPrefill(op, stream);
  return op.weight.dtype == DType::kF32 ? LinearDecodeF32(op, stream) : LinearDecode(op, stream);
}

OpStatus Attention(const AttentionOp& op, OpStream stream) {
  if (op.rows <= 0) return OpStatus::Ok();
  const int32_t d = op.kv.head_dim;
  if (d < 8 || d > 256 || d % 8 != 0) {
    return Unsupported("attention: head_dim must be a multiple of 8, 8..256, got " +
                       std::to_string(d));
  }
  if (op.kv.kv_heads <= 0 || op.q_heads % op.kv.kv_heads != 0) {
    return Invalid("attention: kv_heads " + std::to_string(op.kv.kv_heads) +
                   " must divide q_heads " + std::to_string(op.q_heads));
  }
  return op.phase == Phase::kPrefill ? AttentionPrefill(op, stream) : AttentionDecode(op, stream);
}

size_t WorkspaceBytes(const OpCall& call) {
  if (const auto* linear = std::get_if<LinearOp>(&call.params)) {
    return linear->phase == Phase::kPrefill ? LinearPrefillWorkspaceBytes(*linear)
                                            : LinearDecodeWorkspaceBytes(*linear);
  }
  if (const auto* attention = std::get_if<AttentionOp>(&call.params)) {
    return attention->phase == Phase::kPrefill ? 0 : AttentionDecodeWorkspaceBytes(*attention);
  }
  if (const auto* sample = std::get_if<SampleOp>(&call.params))
    return SampleWorkspaceBytes(*sample);
  return 0;
}

}  // namespace
}  // namespace cuda

OpStatus CudaOpsInit() {
  using namespace cuda;
  if (SmCount() <= 0)
    return OpStatus(OpCode::kDeviceFault, "the CUDA device reports no multiprocessors");
  for (auto init : {InitPack, InitMetadata, InitEmbed, InitNorm, InitLinearDecode,
                    InitLinearDecodeF32, InitLinearPrefill, InitAttentionPrep, InitAttentionDecode,
                    InitAttentionPrefill, InitSample}) {
    if (OpStatus status = init(); !status.ok()) return status;
  }
  return OpStatus::Ok();
}

const OpTable& CudaOps() {
  static const OpTable ops = {
      .backend = "cuda",
      .activation_dtype = cuda::ActivationDType,
      .pack = cuda::Pack,
      .upload = cuda::Upload,
      .metadata = cuda::Metadata,
      .embed = cuda::Embed,
      .linear = cuda::Linear,
      .attention_prep = cuda::AttentionPrep,
      .attention = cuda::Attention,
      .sample = cuda::Sample,
      .packed_bytes = cuda::PackedBytes,
      .workspace_bytes = cuda::WorkspaceBytes,
  };
  return ops;
}

}  // namespace latchd
