#include <cstring>

#include "kernels/cpu/ops_internal.h"

namespace latchd::cpu {

// The CPU streams weights row-major: each thread reads a contiguous range, which is what the
// hardware prefetchers like best. A panel layout was not needed, because a row's dot products
// vectorise along k.
OpStatus Pack(const PackOp& op, OpStream) {
  if (op.row_begin < 0 || op.rows < 0 || op.row_begin + op.rows > op.n || op.k <= 0) {
    return Invalid("pack: rows [" + std::to_string(op.row_begin) + ", " +
                   std::to_string(op.row_begin + op.rows) + ") are not inside [0, " +
                   std::to_string(op.n) + ")");
  }
  const size_t row_bytes = static_cast<size_t>(op.k) * SizeOf(op.dtype);
  std::memcpy(static_cast<char*>(op.destination) + static_cast<size_t>(op.row_begin) * row_bytes,
              op.source, static_cast<size_t>(op.rows) * row_bytes);
  return OpStatus::Ok();
}

}  // namespace latchd::cpu
