#pragma once

#include <cstdint>

namespace latchd::cpu {

// Threads that help the caller of one parallel region at a time. The caller takes pieces of the
// work too, and waits only for pieces that somebody has begun: a helper that the system does not
// run costs nothing. (With a barrier as in OpenMP, a step of 150 regions took 30 times as long on a
// machine with one busy core too few.) Which thread takes which piece never changes a result:
// pieces are cut by shape.

// Threads of every region from now on, the caller's included; 0 = all cores. The helpers live until
// the next change. Must not be called inside a region.
void SetThreads(int threads);
int Threads();

using Piece = void (*)(const void* context, int64_t piece, int thread);

// Calls run(context, piece, thread) for each piece of [0, pieces), on up to `threads` threads;
// `thread` is below it and no two pieces with the same `thread` run at once. Returns when all are
// done. A region inside a region, or one begun while another thread is in a region, runs on its
// caller alone. REQUIRES: pieces < 2^31.
void RunPieces(int64_t pieces, int threads, Piece run, const void* context);

}  // namespace latchd::cpu
