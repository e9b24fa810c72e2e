#pragma once

#include "kernels/api/op_status.h"
#include "kernels/api/ops.h"

// START HERE. Every op that a backend implements, on one page. kernels/cpu is the readable
// specification; kernels/cuda is compared with it. Parameters are documented in ops.h.

namespace latchd {

using OpStream = void*;  // cudaStream_t on CUDA; unused on the CPU

struct OpTable {
  const char* backend;  // "cpu", "cuda"
  DType (*activation_dtype)(
      DType compute);  // dtype of activations that feed a LinearOp without norm (attention
                       // output, MLP hidden): f32 on the CPU, the compute dtype on CUDA

  // Null where the layout is row-major (the CPU): weights are read straight into place.
  OpStatus (*pack)(const PackOp&, OpStream);
  OpStatus (*upload)(const UploadOp&, OpStream);
  OpStatus (*metadata)(const MetadataOp&, OpStream);
  OpStatus (*embed)(const EmbedOp&, OpStream);
  OpStatus (*linear)(const LinearOp&, OpStream);
  OpStatus (*attention_prep)(const AttentionPrepOp&, OpStream);
  OpStatus (*attention)(const AttentionOp&, OpStream);
  OpStatus (*sample)(const SampleOp&, OpStream);

  size_t (*packed_bytes)(DType dtype, int64_t n, int64_t k);
  size_t (*workspace_bytes)(const OpCall&);  // what the call needs in `workspace`; 0 for most
};

const OpTable& CpuOps();
// Threads that CPU ops use, the caller's included, for the whole process; 0 = all cores. Returns
// the number.
int SetCpuThreads(int threads);
#if LATCHD_HAS_CUDA
// Loads every kernel module and library handle on the current device, so that nothing is loaded
// inside a capture.
OpStatus CudaOpsInit();
const OpTable& CudaOps();
#endif

inline OpStatus Dispatch(const OpTable& ops, const OpCall& call, OpStream stream) {
  struct Visitor {
    const OpTable& ops;
    OpStream stream;
    OpStatus operator()(const PackOp& op) const {
      if (ops.pack != nullptr) return ops.pack(op, stream);
      return {OpCode::kUnsupported,
              std::string("pack: the weights of ") + ops.backend + " are row-major as they are"};
    }
    OpStatus operator()(const UploadOp& op) const { return ops.upload(op, stream); }
    OpStatus operator()(const MetadataOp& op) const { return ops.metadata(op, stream); }
    OpStatus operator()(const EmbedOp& op) const { return ops.embed(op, stream); }
    OpStatus operator()(const LinearOp& op) const { return ops.linear(op, stream); }
    OpStatus operator()(const AttentionPrepOp& op) const { return ops.attention_prep(op, stream); }
    OpStatus operator()(const AttentionOp& op) const { return ops.attention(op, stream); }
    OpStatus operator()(const SampleOp& op) const { return ops.sample(op, stream); }
  };
  return std::visit(Visitor{ops, stream}, call.params);
}

}  // namespace latchd
