#include <cstring>

#include "kernels/cpu/ops_internal.h"

namespace latchd::cpu {

OpStatus Upload(const UploadOp& op, OpStream) {
  std::memcpy(op.destination, op.host_source, op.bytes);
  return OpStatus::Ok();
}

}  // namespace latchd::cpu
