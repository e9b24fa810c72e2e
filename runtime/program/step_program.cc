#include "runtime/program/step_program.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace latchd {
namespace {

const char* Name(Phase phase) { return phase == Phase::kDecode ? "decode" : "prefill"; }

const char* Name(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::kStore: return "store";
    case Epilogue::kResidual: return "residual";
    case Epilogue::kSiluMul: return "silu-mul";
  }
  return "?";
}

struct Describe {
  std::string operator()(const PackOp& op) const {
    return absl::StrCat("pack ", std::string(latchd::Name(op.dtype)), " [", op.n, ", ", op.k, "]");
  }
  std::string operator()(const UploadOp& op) const {
    return absl::StrCat("upload ", op.bytes, " bytes");
  }
  std::string operator()(const MetadataOp& op) const {
    return absl::StrCat("metadata rows=", op.rows, " rotary=", op.rotary_rows, " vocab=", op.vocab);
  }
  std::string operator()(const EmbedOp& op) const {
    return absl::StrCat("embed ", std::string(latchd::Name(op.table.dtype)), " [", op.table.n, ", ",
                        op.table.k, "] rows=", op.rows);
  }
  std::string operator()(const LinearOp& op) const {
    return absl::StrCat("linear ", Name(op.phase), " ", std::string(latchd::Name(op.weight.dtype)),
                        " [", op.weight.n, ", ", op.weight.k, "] rows=", op.rows,
                        op.norm_weight ? " norm" : "", op.bias ? " bias " : " ", Name(op.epilogue));
  }
  std::string operator()(const AttentionPrepOp& op) const {
    return absl::StrCat("attention_prep heads=", op.q_heads, "/", op.kv.kv_heads, "x",
                        op.kv.head_dim, " rows=", op.rows, op.q_norm ? " qk-norm" : "",
                        " rope=", op.rotary_dim, op.rotary_interleaved ? " interleaved" : " half");
  }
  std::string operator()(const AttentionOp& op) const {
    return absl::StrCat("attention ", Name(op.phase), " heads=", op.q_heads, "/", op.kv.kv_heads,
                        "x", op.kv.head_dim, " rows=", op.rows,
                        " kv=", std::string(latchd::Name(op.kv.dtype)), " window=", op.window,
                        " softcap=", op.softcap);
  }
  std::string operator()(const SampleOp& op) const {
    return absl::StrCat("sample rows=", op.rows, " vocab=", op.vocab);
  }
};

struct CountBytes {
  int64_t kv_tokens;
  size_t operator()(const PackOp& op) const { return 2 * op.rows * op.k * SizeOf(op.dtype); }
  size_t operator()(const UploadOp& op) const { return op.bytes; }
  size_t operator()(const MetadataOp& op) const {
    return op.rows * (sizeof(StepRow) + sizeof(RowMeta));
  }
  size_t operator()(const EmbedOp& op) const {
    return op.rows * op.table.k * (SizeOf(op.table.dtype) + sizeof(float));
  }
  size_t operator()(const LinearOp& op) const {
    size_t y = op.weight.n * SizeOf(op.y_dtype);
    if (op.epilogue == Epilogue::kResidual) y *= 2;  // read and written
    if (op.epilogue == Epilogue::kSiluMul) y /= 2;   // gate and up become one
    return op.weight.n * op.weight.k * SizeOf(op.weight.dtype) +
           op.rows * (op.weight.k * SizeOf(op.x_dtype) + y);
  }
  size_t operator()(const AttentionPrepOp& op) const {
    const size_t kv_heads = size_t{2} * op.kv.kv_heads;
    return op.rows * op.kv.head_dim *
           ((op.q_heads + kv_heads) * sizeof(float) + op.q_heads * sizeof(float) +
            kv_heads * SizeOf(op.kv.dtype));
  }
  size_t operator()(const AttentionOp& op) const {
    // Rows of a prefill are of one slot and share its keys.
    const size_t readers = op.phase == Phase::kPrefill ? 1 : op.rows;
    const int64_t seen = op.window > 0 ? std::min<int64_t>(op.window, kv_tokens) : kv_tokens;
    return size_t{2} * readers * op.kv.kv_heads * seen * op.kv.head_dim * SizeOf(op.kv.dtype) +
           size_t{1} * op.rows * op.q_heads * op.kv.head_dim *
               (sizeof(float) + SizeOf(op.out_dtype));
  }
  size_t operator()(const SampleOp& op) const { return size_t{4} * op.rows * op.vocab; }
};

}  // namespace

absl::Status Submit(const StepProgram& program, Device& device) {
  for (const OpCall& call : program.calls) {
    if (absl::Status status = device.Run(call); !status.ok()) {
      return absl::Status(status.code(), absl::StrCat(ToString(call), ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

size_t MinimumBytes(const OpCall& call, int64_t kv_tokens) {
  return std::visit(CountBytes{kv_tokens}, call.params);
}

std::string ToString(const OpCall& call) {
  std::string where = call.layer >= 0 ? absl::StrCat("layer ", call.layer, " ") : "";
  return absl::StrCat(where, call.label, ": ", std::visit(Describe{}, call.params));
}

std::string ToString(const StepProgram& program) {
  std::string text;
  for (const OpCall& call : program.calls) absl::StrAppend(&text, ToString(call), "\n");
  return text;
}

}  // namespace latchd
