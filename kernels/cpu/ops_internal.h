#pragma once

#include <string>

#include "kernels/api/op_table.h"

// The CPU implementations, one file each. See kernels/api/ops.h for what they do.

namespace latchd::cpu {

OpStatus Upload(const UploadOp& op, OpStream);
OpStatus Metadata(const MetadataOp& op, OpStream);
OpStatus Embed(const EmbedOp& op, OpStream);
OpStatus Linear(const LinearOp& op, OpStream);
OpStatus AttentionPrep(const AttentionPrepOp& op, OpStream);
OpStatus Attention(const AttentionOp& op, OpStream);
OpStatus Sample(const SampleOp& op, OpStream);

// Bytes of `workspace` that the op needs with the number of threads of the calling thread.
size_t LinearWorkspaceBytes(const LinearOp& op);
size_t AttentionWorkspaceBytes(const AttentionOp& op);
size_t SampleWorkspaceBytes(const SampleOp& op);

inline OpStatus Invalid(std::string message) {
  return OpStatus(OpCode::kInvalidArgument, std::move(message));
}

inline OpStatus WorkspaceTooSmall(const char* op, size_t needed, size_t given) {
  return OpStatus(OpCode::kFailedPrecondition, std::string(op) + " workspace: needs " +
                                                   std::to_string(needed) + " bytes, got " +
                                                   std::to_string(given));
}

// Buffers inside a workspace start on cache lines.
inline size_t Align64(size_t bytes) { return (bytes + 63) & ~size_t{63}; }

}  // namespace latchd::cpu
