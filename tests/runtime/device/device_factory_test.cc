#include <string>

#include "runtime/device/device.h"
#include "tests/support/status_matchers.h"

namespace latchd {
namespace {

using testing::Fails;
using testing::IsOk;

TEST(CreateDevice, CpuIsAlwaysThere) {
  absl::StatusOr<std::unique_ptr<Device>> device = CreateDevice("cpu", 1);
  ASSERT_THAT(device, IsOk());
  EXPECT_EQ((*device)->info().backend, "cpu");
  EXPECT_EQ((*device)->info().compute_units, 1);
}

TEST(CreateDevice, AutoTakesTheGpuOnlyWhereThereIsOne) {
  absl::StatusOr<std::unique_ptr<Device>> device = CreateDevice("auto", 1);
  ASSERT_THAT(device, IsOk());
  EXPECT_EQ((*device)->info().backend, GpuUnavailableReason().empty() ? "cuda" : "cpu");
}

TEST(CreateDevice, AGpuThatIsNotThereIsNamedWithAWayOut) {
  for (const char* spec : {"cuda", "cuda:0", "cuda:97"}) {
    if (GpuUnavailableReason().empty() && std::string(spec) != "cuda:97") continue;
    EXPECT_THAT(CreateDevice(spec, 1), Fails(absl::StatusCode::kUnavailable, spec));
  }
  if (!GpuUnavailableReason().empty()) {
    EXPECT_THAT(CreateDevice("cuda", 1), Fails(absl::StatusCode::kUnavailable, "--device cpu"));
    EXPECT_THAT(CreateDevice("cuda", 1),
                Fails(absl::StatusCode::kUnavailable, GpuUnavailableReason()));
  }
}

TEST(CreateDevice, ASpecThatMeansNothingIsRefusedByName) {
  for (const std::string spec :
       {"", "gpu", "CPU", "cpu ", "cpu:0", "cuda:", "cuda:-1", "cuda:x", "cuda:0x", "cuda:1.5",
        "cuda: 1", "cuda:99999999999999", "cuda0", "auto:0"}) {
    EXPECT_THAT(CreateDevice(spec, 1), Fails(absl::StatusCode::kInvalidArgument,
                                             "device: expected auto, cpu, cuda or cuda:N"));
    EXPECT_THAT(CreateDevice(spec, 1),
                Fails(absl::StatusCode::kInvalidArgument, "got '" + spec + "'"));
  }
}

TEST(ToStatus, EachOpCodeHasItsStatus) {
  struct Case {
    OpCode op;
    absl::StatusCode status;
  };
  for (const Case& c : {Case{OpCode::kInvalidArgument, absl::StatusCode::kInvalidArgument},
                        Case{OpCode::kUnsupported, absl::StatusCode::kUnimplemented},
                        Case{OpCode::kResourceExhausted, absl::StatusCode::kResourceExhausted},
                        Case{OpCode::kFailedPrecondition, absl::StatusCode::kFailedPrecondition},
                        Case{OpCode::kDeviceFault, absl::StatusCode::kInternal}}) {
    EXPECT_THAT(ToStatus(OpStatus(c.op, "what happened")), Fails(c.status, "what happened"));
  }
  EXPECT_THAT(ToStatus(OpStatus::Ok()), IsOk());
}

}  // namespace
}  // namespace latchd
