#include <limits>

#include "tests/kernels/cuda/cuda_fixture.h"

namespace latchd {
namespace {

using reference::Random;

struct StepData {
  static constexpr int32_t kSlots = 6, kMaxPages = 50, kPoolPages = 400, kShift = 4, kVocab = 300,
                           kRotary = 700;
  std::vector<Latch> latch = std::vector<Latch>(kSlots);
  std::vector<int32_t> next_token, capacity, page_table,
      history = std::vector<int32_t>(kPoolPages * 16, -5);
  int32_t latch_stride = 1;
  std::vector<StepRow> inputs;
  std::vector<RowMeta> meta;

  explicit StepData(Random& random) {
    for (int32_t s = 0; s < kSlots; ++s) {
      next_token.push_back(random.Int(0, kVocab - 1));
      capacity.push_back(random.Int(1, kMaxPages * 16));
      for (int32_t p = 0; p < kMaxPages; ++p) page_table.push_back(s * kMaxPages + p);
    }
    random.Shuffle(page_table);
  }
  SlotTables HostTables() {
    return {latch.data(), next_token.data(), capacity.data(), page_table.data(),
            nullptr,      nullptr,           history.data(),  kSlots,
            kMaxPages,    kPoolPages,        kShift,          16,
            latch_stride};
  }
};

class CudaMetadata : public CudaTest {
 protected:
  SlotTables MirrorTables(StepData& d) {
    SlotTables t = d.HostTables();
    t.latch = Mirror(d.latch);
    t.next_token = Mirror(d.next_token);
    t.capacity = Mirror(d.capacity);
    t.page_table = Mirror(d.page_table);
    t.history = Mirror(d.history);
    return t;
  }
  void Check(StepData& d) {
    const int32_t rows = static_cast<int32_t>(d.inputs.size());
    d.meta.resize(d.inputs.size());
    MetadataOp gpu = {Mirror(d.inputs),  Mirror(d.meta),  MirrorTables(d), rows,
                      StepData::kRotary, StepData::kVocab};
    const MetadataOp cpu = {d.inputs.data(),   d.meta.data(),   d.HostTables(), rows,
                            StepData::kRotary, StepData::kVocab};
    ASSERT_TRUE(CpuOps().metadata(cpu, nullptr).ok());
    RunEager(gpu);
    const std::vector<RowMeta> meta = Get<RowMeta>(gpu.meta, d.meta.size());
    const std::vector<Latch> latch = Get<Latch>(gpu.tables.latch, d.latch.size());
    for (size_t r = 0; r < meta.size(); ++r) {
      EXPECT_EQ(std::memcmp(&meta[r], &d.meta[r], sizeof(RowMeta)), 0)
          << "row " << r << " slot " << meta[r].slot << "/" << d.meta[r].slot;
    }
    for (size_t s = 0; s < latch.size(); ++s) {
      EXPECT_EQ(std::memcmp(&latch[s], &d.latch[s], sizeof(Latch)), 0)
          << "slot " << s << " mask " << latch[s].mask << "/" << d.latch[s].mask;
    }
  }
};

TEST_F(CudaMetadata, RandomRowsEqualCpu) {
  Random random;
  SCOPED_TRACE(random.note());
  for (int round = 0; round < 200; ++round) {
    StepData d(random);
    if (random.Chance(0.3)) d.latch_stride = 0;
    if (random.Chance(0.2))
      d.page_table[static_cast<size_t>(random.Int(0, 299))] = random.Chance(0.5) ? -1 : 400;
    if (random.Chance(0.2)) d.latch[static_cast<size_t>(random.Int(0, 5))].mask = kPosition;
    const int32_t rows = random.Chance(0.2) ? random.Int(33, 150) : random.Int(1, 12);
    for (int32_t r = 0; r < rows; ++r) {
      const int32_t slot = random.Chance(0.1) ? kInactive : random.Int(0, StepData::kSlots);
      const int32_t capacity =
          slot >= 0 && slot < StepData::kSlots ? d.capacity[static_cast<size_t>(slot)] : 10;
      StepRow row = {slot,
                     random.Chance(0.3) ? kTokenFromSlot : random.Int(0, StepData::kVocab - 1),
                     random.Int(0, capacity - 1),
                     kRowSample,
                     random.Int(0, StepData::kRotary - 1),
                     r};
      if (random.Chance(0.3)) row.flags |= kRowExplicitPosition;
      if (random.Chance(0.2)) row.flags |= kRowAttendOnly;
      if (random.Chance(0.05)) row.token = random.Chance(0.5) ? -2 : StepData::kVocab;
      if (random.Chance(0.05)) row.seqlens_k = random.Chance(0.5) ? capacity : -random.Int(1, 5);
      if (random.Chance(0.02)) row.seqlens_k = std::numeric_limits<int32_t>::max();
      if (random.Chance(0.05)) row.position = random.Chance(0.5) ? -1 : StepData::kRotary;
      d.inputs.push_back(row);
    }
    Check(d);
  }
}

// A prompt's rows share a slot: the first bad one stops the later ones, across rounds of 32 rows
// too.
TEST_F(CudaMetadata, ViolationStopsTheRestOfThePrompt) {
  Random random;
  for (int32_t bad : {0, 5, 31, 32, 40, 99}) {
    StepData d(random);
    d.capacity[2] = 400;
    for (int32_t r = 0; r < 100; ++r)
      d.inputs.push_back({2, r == bad ? StepData::kVocab : 7, r, kRowPrompt, 0, 1});
    Check(d);
    EXPECT_EQ(d.latch[2].mask, kTokenRange);
    EXPECT_EQ(d.latch[2].row, bad);
  }
}

TEST_F(CudaMetadata, EmbedEqualsCpuAndWritesHistory) {
  Random random;
  SCOPED_TRACE(random.note());
  const int64_t hidden = 72;
  for (DType dtype : kAllDTypes) {
    StepData d(random);
    const std::vector<char> table =
        reference::Encode(dtype, random.Normals(StepData::kVocab * hidden));
    void* packed = Raw(device().ops().packed_bytes(dtype, StepData::kVocab, hidden));
    RunEager(PackOp{Mirror(table), packed, dtype, StepData::kVocab, hidden, 0, StepData::kVocab});
    d.meta = {
        {0, 299, 3, 4, 3, kRowPrompt}, reference::Skipped(), {4, 17, 100, 101, 100, kRowSample}};
    std::vector<float> out(3 * hidden, 777.0f);
    EmbedOp gpu = {
        Mirror(d.meta), {packed, dtype, StepData::kVocab, hidden}, Mirror(out), MirrorTables(d), 3};
    const EmbedOp cpu = {d.meta.data(),
                         {table.data(), dtype, StepData::kVocab, hidden},
                         out.data(),
                         d.HostTables(),
                         3};
    ASSERT_TRUE(CpuOps().embed(cpu, nullptr).ok());
    RunEager(gpu);
    EXPECT_EQ(Get<float>(gpu.out, out.size()), out) << Name(dtype);
    EXPECT_EQ(Get<int32_t>(gpu.tables.history, d.history.size()), d.history) << Name(dtype);
  }
}

// The device itself: capture rules and copies.
TEST_F(CudaMetadata, CaptureForbidsAllocationAndCopies) {
  ASSERT_TRUE(device().BeginCapture().ok());
  const absl::StatusOr<Buffer> buffer = device().Allocate(64, MemoryKind::kDevice, "late");
  const absl::Status upload = device().Upload(nullptr, nullptr, 0);
  EXPECT_EQ(device().BeginCapture().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(device().EndCapture().ok());
  EXPECT_EQ(buffer.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(buffer.status().message().find("warm the fixed decode shape first"), std::string::npos);
  EXPECT_EQ(upload.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(device().EndCapture().status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(CudaMetadata, LargeUploadsArriveAndFreshMemoryIsZero) {
  Random random;
  std::vector<uint64_t> words((size_t{40} << 20) / 8 + 3);
  for (uint64_t& w : words) w = random.Word();
  void* data = Raw(words.size() * 8);
  const std::vector<uint64_t> zero = Get<uint64_t>(data, words.size());
  EXPECT_EQ(std::count(zero.begin(), zero.end(), uint64_t{0}), static_cast<long>(zero.size()));
  Put(data, words);
  EXPECT_EQ(Get<uint64_t>(data, words.size()), words);
}

TEST_F(CudaMetadata, ReplayedUploadReadsThePinnedBufferAnew) {
  auto* pinned = static_cast<int32_t*>(Raw(64, MemoryKind::kPinned));
  void* destination = Raw(64);
  pinned[0] = 1;
  ASSERT_TRUE(device().BeginCapture().ok());
  ASSERT_TRUE(device().Run(OpCall{UploadOp{pinned, destination, 64}}).ok());
  absl::StatusOr<std::unique_ptr<Graph>> graph = device().EndCapture();
  ASSERT_TRUE(graph.ok());
  for (int32_t value : {5, 9}) {
    pinned[0] = value;
    ASSERT_TRUE(device().Replay(**graph).ok());
    EXPECT_EQ(Get<int32_t>(destination, 1)[0], value);
  }
}

}  // namespace
}  // namespace latchd
