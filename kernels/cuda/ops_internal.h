#pragma once

#include "kernels/api/op_table.h"

// The CUDA implementations, one file each; see kernels/api/ops.h for what they do. Init* load an
// op's kernels.

namespace latchd::cuda {

OpStatus Pack(const PackOp& op, OpStream stream);
OpStatus Upload(const UploadOp& op, OpStream stream);
OpStatus Metadata(const MetadataOp& op, OpStream stream);
OpStatus Embed(const EmbedOp& op, OpStream stream);
OpStatus LinearDecode(const LinearOp& op, OpStream stream);
OpStatus LinearDecodeF32(const LinearOp& op, OpStream stream);
OpStatus LinearPrefill(const LinearOp& op, OpStream stream);
OpStatus AttentionPrep(const AttentionPrepOp& op, OpStream stream);
OpStatus AttentionDecode(const AttentionOp& op, OpStream stream);
OpStatus AttentionPrefill(const AttentionOp& op, OpStream stream);
OpStatus Sample(const SampleOp& op, OpStream stream);

// out[r] = norm(x[r]) as `out_dtype`, [rows, k]; without norm_weight a conversion. The same
// arithmetic, bit for bit, as the norm inside LinearDecode.
OpStatus NormRows(const LinearOp& op, void* out, DType out_dtype, OpStream stream);

size_t LinearDecodeWorkspaceBytes(const LinearOp& op);
size_t LinearPrefillWorkspaceBytes(const LinearOp& op);
size_t AttentionDecodeWorkspaceBytes(const AttentionOp& op);
size_t SampleWorkspaceBytes(const SampleOp& op);

OpStatus InitPack();
OpStatus InitMetadata();
OpStatus InitEmbed();
OpStatus InitNorm();
OpStatus InitLinearDecode();
OpStatus InitLinearDecodeF32();
OpStatus InitLinearPrefill();
OpStatus InitAttentionPrep();
OpStatus InitAttentionDecode();
OpStatus InitAttentionPrefill();
OpStatus InitSample();

}  // namespace latchd::cuda
