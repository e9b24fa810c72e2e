#include <cblas.h>

#include <cstring>
#include <limits>

#include "kernels/api/convert.h"
#include "kernels/cpu/attention_internal.h"
#include "kernels/cpu/blas_threads.h"
#include "kernels/cpu/ops_internal.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vectors.h"

namespace latchd::cpu {
namespace {

// A tile is a stretch of rows times the query heads of one KV head: about 128 queries share each
// converted key block.
int32_t TileRows(const AttentionOp& op) {
  constexpr int32_t kQueries = 128;
  return std::max(1, kQueries / (op.q_heads / op.kv.kv_heads));
}
int64_t TileQueries(const AttentionOp& op) {
  return int64_t{TileRows(op)} * (op.q_heads / op.kv.kv_heads);
}

// One thread's buffers, f32.
struct Tile {
  float* queries;        // [queries, head_dim]
  float* acc;            // [queries, head_dim]
  float* scores;         // [queries, kPrefillKeys]
  float* keys;           // [kPrefillKeys, head_dim]
  float* values;         // [kPrefillKeys, head_dim]
  SoftmaxState* states;  // [queries]
};

Tile Carve(const AttentionOp& op, float* scratch) {
  const int64_t queries = TileQueries(op);
  const int64_t head_dim = op.kv.head_dim;
  Tile tile;
  tile.queries = scratch;
  tile.acc = tile.queries + queries * head_dim;
  tile.scores = tile.acc + queries * head_dim;
  tile.keys = tile.scores + queries * kPrefillKeys;
  tile.values = tile.keys + kPrefillKeys * head_dim;
  tile.states = reinterpret_cast<SoftmaxState*>(tile.values + kPrefillKeys * head_dim);
  return tile;
}

// out [end - begin, head_dim] = keys or values [begin, end) of one head as f32.
void LoadTokens(const KvView& kv, const void* pool, int32_t slot, int32_t kv_head, int32_t begin,
                int32_t end, float* out) {
  while (begin < end) {
    const int64_t page_end = (int64_t{begin >> kv.page_shift} + 1) << kv.page_shift;
    const int32_t stop = static_cast<int32_t>(std::min<int64_t>(end, page_end));
    const size_t count = static_cast<size_t>(stop - begin) * kv.head_dim;
    Widen(kv.dtype,
          static_cast<const char*>(pool) + kv.Offset(slot, kv_head, begin) * SizeOf(kv.dtype), out,
          count);
    out += count;
    begin = stop;
  }
}

// Turns the scores of one query against keys [block, block + count) into weights, those it may not
// see into 0. `bias` belongs to key `block`; null: none.
void WeighScores(const AttentionOp& op, int32_t total, int32_t block, int32_t count,
                 const float* bias, float* scores, float* acc, SoftmaxState& state) {
  constexpr float kMasked = -std::numeric_limits<float>::infinity();
  const int32_t low = std::clamp(FirstKey(op, total) - block, 0, count);
  const int32_t high = std::clamp(total - block, low, count);
  ScaleScores(scores + low, high - low, op.scale, op.softcap,
              bias == nullptr ? nullptr : bias + low);
  std::fill(scores, scores + low, kMasked);
  std::fill(scores + high, scores + count, kMasked);
  ScaleVector(acc, op.kv.head_dim, SoftmaxBlock(scores, count, state));
}

// Rows [begin, end) are live and of one slot. Their totals may differ in any way: each query masks
// by its own.
void AttendTile(const AttentionOp& op, int32_t kv_head, int64_t begin, int64_t end,
                const Tile& tile) {
  const KvView& kv = op.kv;
  const int32_t group = op.q_heads / kv.kv_heads;
  const int32_t head_dim = kv.head_dim;
  const int32_t slot = op.meta[begin].slot;
  const int64_t queries = (end - begin) * group;
  const size_t group_floats = static_cast<size_t>(group) * head_dim;

  int32_t first_key = std::numeric_limits<int32_t>::max();
  int32_t last_key = 0;
  for (int64_t r = begin; r < end; ++r) {
    const size_t at =
        (static_cast<size_t>(r) * op.q_heads + static_cast<size_t>(kv_head) * group) * head_dim;
    std::memcpy(tile.queries + (r - begin) * group_floats, op.q + at, group_floats * sizeof(float));
    first_key = std::min(first_key, FirstKey(op, op.meta[r].total));
    last_key = std::max(last_key, op.meta[r].total);
  }
  std::fill_n(tile.acc, queries * head_dim, 0.0f);
  std::fill_n(tile.states, queries, SoftmaxState());

  for (int32_t block = first_key; block < last_key; block += kPrefillKeys) {
    const int32_t count = std::min(kPrefillKeys, last_key - block);
    LoadTokens(kv, kv.key, slot, kv_head, block, block + count, tile.keys);
    LoadTokens(kv, kv.value, slot, kv_head, block, block + count, tile.values);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<int>(queries), count, head_dim,
                1.0f, tile.queries, head_dim, tile.keys, head_dim, 0.0f, tile.scores, kPrefillKeys);
    for (int64_t i = 0; i < queries; ++i) {
      const int64_t row = begin + i / group;
      const int32_t q_head = kv_head * group + static_cast<int32_t>(i % group);
      WeighScores(op, op.meta[row].total, block, count, BiasAt(op, row, q_head, block),
                  tile.scores + i * kPrefillKeys, tile.acc + i * head_dim, tile.states[i]);
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, static_cast<int>(queries), head_dim,
                count, 1.0f, tile.scores, kPrefillKeys, tile.values, head_dim, 1.0f, tile.acc,
                head_dim);
  }
  for (int64_t i = 0; i < queries; ++i) {
    float* acc = tile.acc + i * head_dim;
    const int32_t q_head = kv_head * group + static_cast<int32_t>(i % group);
    ScaleVector(acc, head_dim, OutputScale(tile.states[i], SinkOf(op, q_head)));
    const size_t at =
        (static_cast<size_t>(begin + i / group) * op.q_heads + static_cast<size_t>(q_head)) *
        head_dim;
    ConvertFromF32(op.out_dtype, acc, static_cast<char*>(op.out) + at * SizeOf(op.out_dtype),
                   static_cast<size_t>(head_dim));
  }
}

}  // namespace

int64_t PrefillTileFloats(const AttentionOp& op) {
  const int64_t queries = TileQueries(op);
  const int64_t head_dim = op.kv.head_dim;
  static_assert(sizeof(SoftmaxState) == 2 * sizeof(float));
  return 2 * queries * head_dim + queries * kPrefillKeys + 2 * kPrefillKeys * head_dim +
         2 * queries;
}

void AttentionPrefill(const AttentionOp& op, float* scratch, int threads) {
  UseSingleThreadedBlas();
  const int32_t kv_heads = op.kv.kv_heads;
  const int64_t tile_rows = TileRows(op);
  const int64_t tiles = (op.rows + tile_rows - 1) / tile_rows;
  const size_t tile_floats =
      Align64(static_cast<size_t>(PrefillTileFloats(op)) * sizeof(float)) / sizeof(float);
  // The last rows see the most keys: taking them first leaves the short work for the end.
  ParallelItems(tiles * kv_heads, kWorthwhileBytes, threads, [&](int64_t item, int thread) {
    const Tile tile = Carve(op, scratch + static_cast<size_t>(thread) * tile_floats);
    const int32_t kv_head = static_cast<int32_t>(item % kv_heads);
    const int64_t first = (tiles - 1 - item / kv_heads) * tile_rows;
    const int64_t last = std::min<int64_t>(op.rows, first + tile_rows);
    for (int64_t begin = first; begin < last;) {
      const int32_t slot = op.meta[begin].slot;
      int64_t end = begin + 1;
      while (end < last && op.meta[end].slot == slot) ++end;
      if (slot >= 0) AttendTile(op, kv_head, begin, end, tile);
      begin = end;
    }
  });
}

}  // namespace latchd::cpu
