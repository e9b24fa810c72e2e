#pragma once

// Include before any Highway header. The kernels keep arrays of vectors (accumulators), which the
// sizeless vectors of SVE and RISC-V do not allow; such CPUs run the NEON code or the portable
// fallback. SSSE3 is left out because every CPU that has it and not SSE4 is out of use, and each
// instruction set costs build time.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | HWY_SSSE3)
