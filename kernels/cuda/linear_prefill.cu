#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <string>

#include "kernels/cuda/common/epilogue.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/packed_layout.h"
#include "kernels/cuda/ops_internal.h"

// Prefill matrix product: normalise to the compute dtype, unpack a slice of the weight to row-major
// (decode owns the layout; the copy costs three times the weight's bytes a chunk of prompt, little
// beside its arithmetic), cuBLASLt into an f32 slice, then the epilogue shared with decode, which
// alone knows of skipped rows. The workspace bounds the slices.

namespace latchd::cuda {
namespace {

constexpr size_t kLibraryBytes = size_t{32} << 20;  // what NVIDIA recommends for Hopper
constexpr size_t kSliceBytes = size_t{64} << 20;    // of the unpacked weight
constexpr int64_t kMaxDevices = 64;

struct Plan {
  int64_t slice;  // rows of the weight a turn
  size_t x_bytes, weight_bytes, out_bytes;
  size_t total() const { return x_bytes + weight_bytes + out_bytes + kLibraryBytes; }
};

Plan MakePlan(const LinearOp& op) {
  const size_t element = SizeOf(op.weight.dtype);
  const int64_t fit =
      static_cast<int64_t>(kSliceBytes / (static_cast<size_t>(op.weight.k) * element)) / 16 * 16;
  Plan plan = {};
  plan.slice = std::min(RowTiles(op.weight.n) * kTileRows, std::max<int64_t>(fit, kTileRows));
  const bool convert = op.norm_weight != nullptr || op.x_dtype != op.weight.dtype;
  if (convert)
    plan.x_bytes =
        Align256(static_cast<size_t>(op.rows) * static_cast<size_t>(op.weight.k) * element);
  if (element == 2) {
    plan.weight_bytes =
        Align256(static_cast<size_t>(plan.slice) * static_cast<size_t>(op.weight.k) * element);
  }
  plan.out_bytes =
      Align256(static_cast<size_t>(op.rows) * static_cast<size_t>(plan.slice) * sizeof(float));
  return plan;
}

// The inverse of Pack for rows [row_begin, row_begin + rows): one thread a 16-byte fragment.
__global__ void UnpackKernel(const uint4* packed, uint16_t* out, int64_t k, int64_t row_begin,
                             int64_t rows, int64_t fragments) {
  const int64_t pairs = ColPairs(k);
  const uint4* from = packed + row_begin / kTileRows * pairs * (kPairElements / 8);
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < fragments;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const int lane = static_cast<int>(i % 32), unit = static_cast<int>(i / 32 % 2);
    const int64_t pair = i / 64;
    const int64_t row0 = pair / pairs * kTileRows + lane / 4;
    const int64_t col0 = pair % pairs * kPairCols + lane % 4 * 8 + unit * 4;
    const uint4 v = from[i];
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};  // a0 .. a3: row bit 0, column-half bit 1
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const int64_t row = row0 + (e / 2) % 2 * 8, col = col0 + (e / 4) * 2 + e % 2;
      if (row < rows && col < k) {
        out[row * k + col] = static_cast<uint16_t>(e % 2 == 0 ? words[e / 2] : words[e / 2] >> 16);
      }
    }
  }
}

// sums [rows, slice] of W's rows [begin, begin + count).
__global__ void EpilogueKernel(EpilogueParams p, const float* sums, int64_t begin, int64_t count,
                               int64_t slice) {
  const int r = static_cast<int>(blockIdx.y);
  if (p.meta[r].slot < 0) return;
  const float* row = sums + r * slice;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    if (p.kind != Epilogue::kSiluMul) {
      StoreOutput(p, r, begin + i, row[i]);
    } else if (i % 16 < 8) {
      StoreGated(p, r, begin + i, row[i], row[i + 8]);
    }
  }
}

std::array<cublasLtHandle_t, kMaxDevices> handles = {};  // by device; made by InitLinearPrefill

OpStatus FromCublas(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return OpStatus::Ok();
  return OpStatus(OpCode::kDeviceFault, std::string(what) + ": " + cublasLtGetStatusString(status));
}

// Frees what cuBLASLt hands out, whichever call fails.
struct MatmulObjects {
  cublasLtMatmulDesc_t matmul = nullptr;
  cublasLtMatrixLayout_t w = nullptr, x = nullptr, y = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  ~MatmulObjects() {
    if (preference != nullptr) cublasLtMatmulPreferenceDestroy(preference);
    if (y != nullptr) cublasLtMatrixLayoutDestroy(y);
    if (x != nullptr) cublasLtMatrixLayoutDestroy(x);
    if (w != nullptr) cublasLtMatrixLayoutDestroy(w);
    if (matmul != nullptr) cublasLtMatmulDescDestroy(matmul);
  }
};

#define LATCHD_CUBLAS(call)                                      \
  do {                                                           \
    if (OpStatus s = FromCublas(call, #call); !s.ok()) return s; \
  } while (false)

// y [rows, ld_y] f32 = x [rows, k] W [count, k]^T. cuBLASLt is column-major: y^T = W x^T.
OpStatus Matmul(const void* weight, const void* x, float* y, DType dtype, int64_t count,
                int64_t rows, int64_t k, int64_t ld_y, void* workspace, OpStream stream) {
  int device = 0;
  if (OpStatus s = FromCuda(cudaGetDevice(&device), "cudaGetDevice"); !s.ok()) return s;
  const cublasLtHandle_t handle = handles[static_cast<size_t>(device)];
  if (handle == nullptr)
    return OpStatus(OpCode::kFailedPrecondition, "CudaOpsInit has not run on this device");
  const cudaDataType_t type = dtype == DType::kF32   ? CUDA_R_32F
                              : dtype == DType::kF16 ? CUDA_R_16F
                                                     : CUDA_R_16BF;
  MatmulObjects o;
  // CUBLAS_COMPUTE_32F is exact f32, without TF32.
  LATCHD_CUBLAS(cublasLtMatmulDescCreate(&o.matmul, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const cublasOperation_t transposed = CUBLAS_OP_T;
  LATCHD_CUBLAS(cublasLtMatmulDescSetAttribute(o.matmul, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                               sizeof(transposed)));
  LATCHD_CUBLAS(cublasLtMatrixLayoutCreate(&o.w, type, static_cast<uint64_t>(k),
                                           static_cast<uint64_t>(count), k));
  LATCHD_CUBLAS(cublasLtMatrixLayoutCreate(&o.x, type, static_cast<uint64_t>(k),
                                           static_cast<uint64_t>(rows), k));
  LATCHD_CUBLAS(cublasLtMatrixLayoutCreate(&o.y, CUDA_R_32F, static_cast<uint64_t>(count),
                                           static_cast<uint64_t>(rows), ld_y));
  LATCHD_CUBLAS(cublasLtMatmulPreferenceCreate(&o.preference));
  const size_t bytes = kLibraryBytes;
  LATCHD_CUBLAS(cublasLtMatmulPreferenceSetAttribute(
      o.preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof(bytes)));
  cublasLtMatmulHeuristicResult_t choice = {};
  int found = 0;
  LATCHD_CUBLAS(cublasLtMatmulAlgoGetHeuristic(handle, o.matmul, o.w, o.x, o.y, o.y, o.preference,
                                               1, &choice, &found));
  if (found == 0) return Unsupported("cuBLASLt has no algorithm for this matrix product");
  const float one = 1.0f, zero = 0.0f;
  LATCHD_CUBLAS(cublasLtMatmul(handle, o.matmul, &one, weight, o.w, x, o.x, &zero, y, o.y, y, o.y,
                               &choice.algo, workspace, bytes, static_cast<cudaStream_t>(stream)));
  return OpStatus::Ok();
}

}  // namespace

size_t LinearPrefillWorkspaceBytes(const LinearOp& op) { return MakePlan(op).total(); }

OpStatus LinearPrefill(const LinearOp& op, OpStream stream) {
  const Plan plan = MakePlan(op);
  if (plan.total() > op.workspace_bytes)
    return WorkspaceTooSmall("linear prefill", plan.total(), op.workspace_bytes);
  char* x_part = static_cast<char*>(op.workspace);
  char* weight_part = x_part + plan.x_bytes;
  float* sums = reinterpret_cast<float*>(weight_part + plan.weight_bytes);
  char* library_part = reinterpret_cast<char*>(sums) + plan.out_bytes;

  const void* x = op.x;
  if (plan.x_bytes > 0) {
    if (op.x_dtype != DType::kF32) {
      return Invalid("linear: x must be f32, or " + std::string(Name(op.weight.dtype)) +
                     " without a norm, got " + std::string(Name(op.x_dtype)));
    }
    if (OpStatus s = NormRows(op, x_part, op.weight.dtype, stream); !s.ok()) return s;
    x = x_part;
  }
  const EpilogueParams epilogue = MakeEpilogue(op);
  const int64_t k = op.weight.k;
  for (int64_t begin = 0; begin < op.weight.n; begin += plan.slice) {
    const int64_t count = std::min(plan.slice, op.weight.n - begin);
    const void* weight = static_cast<const float*>(op.weight.data) + begin * k;
    if (op.weight.dtype != DType::kF32) {
      const int64_t fragments = static_cast<int64_t>(PackedElements(count, k)) / 8;
      const int64_t blocks = std::min<int64_t>((fragments + 255) / 256, 16 * SmCount());
      OpStatus s = Launch("unpack", UnpackKernel, dim3(static_cast<unsigned>(blocks)), dim3(256), 0,
                          stream, LaunchOrder::kOrdered, static_cast<const uint4*>(op.weight.data),
                          reinterpret_cast<uint16_t*>(weight_part), k, begin, count, fragments);
      if (!s.ok()) return s;
      weight = weight_part;
    }
    OpStatus s = Matmul(weight, x, sums, op.weight.dtype, count, op.rows, k, plan.slice,
                        library_part, stream);
    if (!s.ok()) return s;
    const int64_t blocks = std::min<int64_t>((count + 255) / 256, 64);
    s = Launch("linear epilogue", EpilogueKernel,
               dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(op.rows)), dim3(256), 0,
               stream, LaunchOrder::kOrdered, epilogue, static_cast<const float*>(sums), begin,
               count, plan.slice);
    if (!s.ok()) return s;
  }
  return OpStatus::Ok();
}

OpStatus InitLinearPrefill() {
  int device = 0;
  if (OpStatus s = FromCuda(cudaGetDevice(&device), "cudaGetDevice"); !s.ok()) return s;
  if (device >= kMaxDevices)
    return Unsupported("CUDA device index " + std::to_string(device) + " is above 63");
  cublasLtHandle_t& handle = handles[static_cast<size_t>(device)];
  if (handle == nullptr) {
    LATCHD_CUBLAS(cublasLtCreate(&handle));
  }
  if (OpStatus s = Prepare("unpack", UnpackKernel); !s.ok()) return s;
  return Prepare("linear epilogue", EpilogueKernel);
}

}  // namespace latchd::cuda
