#include "server/grpc_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "kernels/api/invariants.h"
#include "server/utf8.h"

namespace latchd {
namespace {

google::rpc::Status Details(const grpc::Status& status) {
  google::rpc::Status rich;
  EXPECT_TRUE(rich.ParseFromString(status.error_details()));
  EXPECT_EQ(rich.code(), status.error_code());
  EXPECT_EQ(rich.message(), status.error_message());
  return rich;
}

TEST(GrpcStatus, KeepsEveryCodeAndMessage) {
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  for (int code = 1; code <= 16; ++code) {
    const grpc::Status status =
        ToGrpcStatus(absl::Status(static_cast<absl::StatusCode>(code), "why"));
    EXPECT_EQ(static_cast<int>(status.error_code()), code);
    EXPECT_EQ(status.error_message(), "why");
    EXPECT_EQ(CodeName(status.error_code()),
              absl::StatusCodeToString(static_cast<absl::StatusCode>(code)));
    Details(status);
  }
  EXPECT_EQ(ToGrpcStatus(absl::Status(static_cast<absl::StatusCode>(99), "?")).error_code(),
            grpc::StatusCode::UNKNOWN);
}

TEST(GrpcStatus, RetryInfoComesWithWhatMayPass) {
  for (int code = 1; code <= 16; ++code) {
    const auto rich =
        Details(ToGrpcStatus(absl::Status(static_cast<absl::StatusCode>(code), "why")));
    const bool retry =
        code == grpc::StatusCode::UNAVAILABLE || code == grpc::StatusCode::RESOURCE_EXHAUSTED;
    ASSERT_EQ(rich.details_size(), retry ? 1 : 0) << code;
    if (!retry) continue;
    google::rpc::RetryInfo info;
    EXPECT_EQ(rich.details(0).type_url(), "type.googleapis.com/google.rpc.RetryInfo");
    ASSERT_TRUE(rich.details(0).UnpackTo(&info));
    EXPECT_GT(info.retry_delay().seconds(), 0);
  }
}

TEST(GrpcStatus, AViolationIsFailedPreconditionWithItsDetail) {
  for (size_t i = 0; i < kInvariants.size(); ++i) {
    Violation violation;
    violation.latch = Latch{kInvariants[i].bit, kInvariants[i].bit, 3, 1, 17, -9, 8};
    violation.text = "text";
    const grpc::Status status = ToGrpcStatus(violation);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    v1::InvariantViolation detail;
    ASSERT_TRUE(Details(status).details(0).UnpackTo(&detail));
    EXPECT_EQ(detail.mask(), static_cast<uint32_t>(kInvariants[i].bit));
    ASSERT_EQ(detail.invariants_size(), 1);
    EXPECT_EQ(v1::Invariant_Name(detail.invariants(0)),
              "INVARIANT_" + std::string(kInvariants[i].name));
    EXPECT_EQ(detail.layer(), 3);
    EXPECT_EQ(detail.row(), 1);
    EXPECT_EQ(detail.step(), 17);
    EXPECT_EQ(detail.value(), -9);
    EXPECT_EQ(detail.limit(), 8);
    EXPECT_EQ(detail.message(), "text");
  }
}

TEST(GrpcStatus, SeveralBitsAreAllNamed) {
  Violation violation;
  for (const InvariantInfo& info : kInvariants) violation.latch.mask |= info.bit;
  EXPECT_EQ(ToProto(violation).invariants_size(), static_cast<int>(kInvariants.size()));
}

TEST(GrpcStatus, LongAndBrokenMessagesFitATrailer) {
  std::string message(5000, 'a');
  message[1] = '\xFF';
  const grpc::Status status = ToGrpcStatus(absl::InternalError(message));
  EXPECT_LE(status.error_message().size(), kMaxStatusMessageBytes);
  EXPECT_FALSE(FirstInvalidUtf8(status.error_message()));
  Details(status);
}

}  // namespace
}  // namespace latchd
