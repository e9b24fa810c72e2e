#include "server/startup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace latchd {
namespace {

using ::testing::HasSubstr;

TEST(Startup, HumanBytes) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1536), "1.5 KiB");
  EXPECT_EQ(HumanBytes(size_t{16} << 30), "16.0 GiB");
}

TEST(Startup, BarFillsAndSurvivesOddTotals) {
  EXPECT_THAT(ProgressBar("capture", 1, 2),
              HasSubstr("[===============               ]  50% (1 of 2)"));
  EXPECT_THAT(ProgressBar("load weights", 3 << 20, 3 << 20),
              HasSubstr("100% (3.0 MiB of 3.0 MiB)"));
  EXPECT_THAT(ProgressBar("x", 5, 0), HasSubstr("  0%"));
  EXPECT_THAT(ProgressBar("x", -5, 2), HasSubstr("  0%"));
  EXPECT_THAT(ProgressBar("x", 9, 2), HasSubstr("100%"));
}

TEST(Startup, AUnixSocketNeedsItsFolder) {
  EXPECT_EQ(std::string(CheckAddressFree(*ParseAddress("unix:/nonexistent/s"), "listen").message()),
            "--listen: cannot listen on unix:/nonexistent/s: its folder: No such file or "
            "directory");
  EXPECT_TRUE(CheckAddressFree(*ParseAddress("unix:latchd_startup_test.sock"), "listen").ok());
}

TEST(Startup, ReportHoldsWhatAnOperatorLooksFor) {
  EngineStatus status;
  status.device_name = "NVIDIA H200";
  status.backend = "cuda";
  status.model_name = "tiny";
  status.model_path = "/models/tiny";
  status.dtype = "bf16";
  status.weight_bytes = size_t{2} << 30;
  status.model_file_bytes = 1'500'000'000;
  status.load_time = absl::Milliseconds(750);
  status.kv_bytes = size_t{1} << 30;
  status.kv_tokens_total = 32768;
  status.device_note = "note";
  const std::string report = StartupReport(status, "127.0.0.1:1", "127.0.0.1:2");
  for (const char* part :
       {"NVIDIA H200 (cuda)", "note", "tiny from /models/tiny", "bf16",
        "2.0 GiB, read from 1.4 GiB of files in 0.750 s (2.00 GB/s)", "1.0 GiB for 32768 tokens",
        "3.0 GiB", "127.0.0.1:1", "http://127.0.0.1:2/healthz"}) {
    EXPECT_THAT(report, HasSubstr(part));
  }
  EXPECT_THAT(StartupReport(status, "a:1", ""), ::testing::Not(HasSubstr("HTTP")));
}

}  // namespace
}  // namespace latchd
