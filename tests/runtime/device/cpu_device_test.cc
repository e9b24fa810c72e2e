#include "runtime/device/cpu_device.h"

#include <cstring>
#include <vector>

#include "tests/support/reference_random.h"
#include "tests/support/status_matchers.h"

namespace latchd {
namespace {

using testing::Fails;
using testing::IsOk;
using enum absl::StatusCode;

constexpr const char* kWarmFirst = "warm the fixed decode shape first";

struct CpuDeviceTest : ::testing::Test {
  std::unique_ptr<Device> device = CreateCpuDevice(2);
  reference::Random random;

  Buffer Allocate(size_t bytes, const char* label = "test") {
    absl::StatusOr<Buffer> buffer = device->Allocate(bytes, MemoryKind::kDevice, label);
    EXPECT_THAT(buffer, IsOk());
    return buffer.ok() ? *std::move(buffer) : Buffer();
  }
  size_t Allocated(const std::string& label) const {
    const auto found = device->allocations().find(label);
    return found == device->allocations().end() ? 0 : found->second;
  }
};

TEST_F(CpuDeviceTest, MemoryOfEachKindIsZeroFilledAlsoWhenItWasUsedBefore) {
  for (const MemoryKind kind :
       {MemoryKind::kDevice, MemoryKind::kPinned, MemoryKind::kHostVisible}) {
    for (int round = 0; round < 3; ++round) {
      const size_t bytes = static_cast<size_t>(random.Int(1, 100000));
      absl::StatusOr<Buffer> buffer = device->Allocate(bytes, kind, "zero");
      ASSERT_THAT(buffer, IsOk());
      EXPECT_EQ(buffer->bytes(), bytes);
      const auto* data = buffer->data<unsigned char>();
      EXPECT_EQ(std::count(data, data + bytes, 0), static_cast<ptrdiff_t>(bytes));
      ASSERT_THAT(device->Fill(buffer->data(), 0xa5, bytes), IsOk());
      EXPECT_EQ(data[bytes - 1], 0xa5);
    }
  }
}

TEST_F(CpuDeviceTest, AccountsForBytesByLabelUntilTheyAreFreed) {
  {
    Buffer first = Allocate(1000, "weights");
    Buffer second = Allocate(24, "weights");
    Buffer other = Allocate(7, "kv");
    EXPECT_EQ(Allocated("weights"), 1024u);
    EXPECT_EQ(Allocated("kv"), 7u);

    Buffer moved = std::move(first);
    EXPECT_EQ(Allocated("weights"), 1024u) << "a move is not an allocation";
    EXPECT_EQ(first.data(), nullptr);  // NOLINT(bugprone-use-after-move): what a move leaves
    EXPECT_EQ(moved.label(), "weights");

    second = std::move(other);  // frees what it held
    EXPECT_EQ(Allocated("weights"), 1000u);
    EXPECT_EQ(Allocated("kv"), 7u);
    Buffer& self = second;
    second = std::move(self);
    EXPECT_NE(second.data(), nullptr);
  }
  EXPECT_EQ(Allocated("weights"), 0u);
  EXPECT_EQ(Allocated("kv"), 0u);
}

TEST_F(CpuDeviceTest, AnEmptyBufferIsAllowedAndAnImpossibleOneIsNamed) {
  EXPECT_NE(Allocate(0).data(), nullptr);
  EXPECT_THAT(device->Allocate(SIZE_MAX / 2, MemoryKind::kDevice, "kv pool"),
              Fails(kResourceExhausted, "'kv pool'"));
  EXPECT_EQ(Allocated("kv pool"), 0u);
}

TEST_F(CpuDeviceTest, CopiesMoveExactlyTheBytesAsked) {
  const std::vector<float> values = random.Normals(100);
  Buffer buffer = Allocate(102 * sizeof(float));
  ASSERT_THAT(device->Upload(buffer.data<float>() + 1, values.data(), 100 * sizeof(float)), IsOk());
  std::vector<float> back(102, 7.0f);
  ASSERT_THAT(device->Download(back.data(), buffer.data(), 102 * sizeof(float)), IsOk());
  EXPECT_EQ(back.front(), 0.0f);
  EXPECT_EQ(back.back(), 0.0f);
  EXPECT_EQ(std::vector<float>(back.begin() + 1, back.end() - 1), values);
}

// What a CUDA capture forbids is refused on the CPU as well, so that a test without a GPU finds it.
TEST_F(CpuDeviceTest, ACaptureRefusesWhatItCannotRecord) {
  Buffer buffer = Allocate(16);
  ASSERT_THAT(device->BeginCapture(), IsOk());
  absl::StatusOr<std::unique_ptr<Graph>> empty = device->EndCapture();
  ASSERT_THAT(empty, IsOk());
  EXPECT_EQ((*empty)->nodes(), 0u);

  char bytes[16] = {1};
  ASSERT_THAT(device->BeginCapture(), IsOk());
  EXPECT_TRUE(device->capturing());
  EXPECT_THAT(device->Allocate(8, MemoryKind::kDevice, "workspace"),
              Fails(kFailedPrecondition, kWarmFirst));
  EXPECT_THAT(device->Allocate(8, MemoryKind::kDevice, "workspace"),
              Fails(kFailedPrecondition, "'workspace'"));
  EXPECT_THAT(device->Upload(buffer.data(), bytes, 16), Fails(kFailedPrecondition, kWarmFirst));
  EXPECT_THAT(device->Upload(buffer.data(), bytes, 16), Fails(kFailedPrecondition, "upload"));
  EXPECT_THAT(device->Download(bytes, buffer.data(), 16), Fails(kFailedPrecondition, "download"));
  EXPECT_THAT(device->Fill(buffer.data(), 1, 16), Fails(kFailedPrecondition, "fill"));
  EXPECT_THAT(device->Replay(**empty), Fails(kFailedPrecondition, "replay"));
  EXPECT_THAT(device->BeginCapture(), Fails(kFailedPrecondition, "already running"));
  EXPECT_EQ(buffer.data<char>()[0], 0) << "a refused upload must not happen";

  ASSERT_THAT(device->EndCapture(), IsOk());
  EXPECT_FALSE(device->capturing());
  EXPECT_THAT(device->EndCapture(), Fails(kFailedPrecondition, "no capture is running"));
  EXPECT_THAT(device->Upload(buffer.data(), bytes, 16), IsOk());
  EXPECT_THAT(device->Replay(**empty), IsOk());
}

// Two ops, the second reading what the first wrote; their inputs change between replays.
TEST_F(CpuDeviceTest, AReplayIsTheEagerRunOnTheDataOfItsMoment) {
  SCOPED_TRACE(random.note());
  constexpr int32_t kRows = 3, kN = 24, kK = 40;
  const std::vector<float> weight = random.Normals(kN * kK);
  const std::vector<RowMeta> meta(kRows, RowMeta{0, 0, 0, 1, 0, 0});
  std::vector<float> host(kRows * kK);
  Buffer x = Allocate(host.size() * sizeof(float));
  std::vector<float> y(kRows * kN);
  LinearOp linear = {.meta = meta.data(),
                     .x = x.data(),
                     .x_dtype = DType::kF32,
                     .weight = {weight.data(), DType::kF32, kN, kK},
                     .epilogue = Epilogue::kStore,
                     .y = y.data(),
                     .y_dtype = DType::kF32,
                     .rows = kRows,
                     .phase = Phase::kDecode};
  Buffer workspace = Allocate(device->ops().workspace_bytes({linear}));
  linear.workspace = workspace.data();
  linear.workspace_bytes = workspace.bytes();
  const OpCall calls[] = {{UploadOp{host.data(), x.data(), x.bytes()}, -1, "inputs"},
                          {linear, 0, "linear"}};

  ASSERT_THAT(device->BeginCapture(), IsOk());
  for (const OpCall& call : calls) ASSERT_THAT(device->Run(call), IsOk());
  absl::StatusOr<std::unique_ptr<Graph>> graph = device->EndCapture();
  ASSERT_THAT(graph, IsOk());
  EXPECT_EQ((*graph)->nodes(), 2u);
  EXPECT_GT((*graph)->bytes(), 0u);
  EXPECT_EQ(y, std::vector<float>(y.size())) << "recording must not run";

  for (int round = 0; round < 3; ++round) {
    // In place: the recorded upload is bound to the vector's memory.
    const std::vector<float> fresh = random.Normals(host.size());
    std::copy(fresh.begin(), fresh.end(), host.begin());
    ASSERT_THAT(device->Replay(**graph), IsOk());
    const std::vector<float> replayed = y;
    std::fill(y.begin(), y.end(), 0.0f);
    for (const OpCall& call : calls) ASSERT_THAT(device->Run(call), IsOk());
    EXPECT_EQ(replayed, y);
    EXPECT_NE(y, std::vector<float>(y.size()));
  }
}

TEST_F(CpuDeviceTest, AnOpsErrorComesBackFromRunAndFromReplay) {
  char bytes[16] = {};
  const OpCall bad = {PackOp{.source = bytes,
                             .destination = bytes,
                             .dtype = DType::kF32,
                             .n = 1,
                             .k = 1,
                             .row_begin = 0,
                             .rows = 2}};
  EXPECT_THAT(device->Run(bad), Fails(kUnimplemented, "pack: the weights of cpu are row-major"));
  ASSERT_THAT(device->BeginCapture(), IsOk());
  ASSERT_THAT(device->Run(bad), IsOk()) << "recording does not run the op";
  absl::StatusOr<std::unique_ptr<Graph>> graph = device->EndCapture();
  ASSERT_THAT(graph, IsOk());
  EXPECT_THAT(device->Replay(**graph), Fails(kUnimplemented, "pack"));
  EXPECT_THAT(device->fault(), IsOk()) << "the CPU has no sticky fault";
}

TEST_F(CpuDeviceTest, SaysWhatItIs) {
  const DeviceInfo& info = device->info();
  EXPECT_EQ(info.backend, "cpu");
  EXPECT_FALSE(info.name.empty());
  EXPECT_EQ(info.compute_units, 2);
  EXPECT_GT(info.total_bytes, 0u);
  EXPECT_GT(info.free_bytes, 0u);
  EXPECT_LE(info.free_bytes, info.total_bytes);
  EXPECT_GE(CreateCpuDevice(0)->info().compute_units, 1);
  EXPECT_THAT(device->Synchronize(), IsOk());
}

}  // namespace
}  // namespace latchd
