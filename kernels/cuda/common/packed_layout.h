#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/api/invariants.h"  // LATCHD_HOST_DEVICE

// Where element (row, col) of a logical [n, k] 16-bit weight lies in its packed form.
//
// The unit is the A operand of mma.m16n8k16: 16 rows x 16 columns, 256 elements, 8 consecutive ones
// (16 bytes) a lane, so that a warp loads a unit with one coalesced 512-byte access, straight into
// the registers the instruction wants (PTX ISA, "Matrix fragments for mma.m16n8k16"). Lane
// l = 4 g + t holds rows g and g + 8. Two neighbouring units cover 32 columns; inside these the
// columns are permuted so that lane t owns the 8 consecutive ones 8 t .. 8 t + 7: the B operand, a
// row of plain row-major activations, is then one 16-byte load for both units. A dot product does
// not care about the order of its terms.
//
// Rows are padded to 16 and columns to 32 with zeros. Units run along k first: one row tile is one
// linear run of memory.

namespace latchd::cuda {

inline constexpr int kTileRows = 16;
inline constexpr int kPairCols = 32;       // columns of a pair of units
inline constexpr int kUnitElements = 256;  // 16 x 16
inline constexpr int kPairElements = 512;

LATCHD_HOST_DEVICE inline int64_t RowTiles(int64_t n) { return (n + kTileRows - 1) / kTileRows; }
LATCHD_HOST_DEVICE inline int64_t ColPairs(int64_t k) { return (k + kPairCols - 1) / kPairCols; }

LATCHD_HOST_DEVICE inline size_t PackedElements(int64_t n, int64_t k) {
  return static_cast<size_t>(RowTiles(n)) * static_cast<size_t>(ColPairs(k)) * kPairElements;
}

LATCHD_HOST_DEVICE inline size_t PackedIndex(int64_t row, int64_t col, int64_t k) {
  const int64_t pair = (row / kTileRows) * ColPairs(k) + col / kPairCols;
  const int r = static_cast<int>(row % kTileRows), c = static_cast<int>(col % kPairCols);
  const int lane = (r % 8) * 4 + c / 8;
  const int unit = (c % 8) / 4;                 // which of the two units of the pair
  const int reg = (r / 8) + 2 * ((c % 4) / 2);  // a0 .. a3
  return static_cast<size_t>(pair) * kPairElements + unit * kUnitElements + lane * 8 + reg * 2 +
         c % 2;
}

}  // namespace latchd::cuda
