#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e/daemon.h"

namespace latchd::e2e {
namespace {

using ::testing::HasSubstr;

// A daemon with a certificate that openssl has just signed by itself.
class TlsE2e : public DaemonTest {
 protected:
  void SetUp() override {
    Process openssl({"openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1",
                     "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout",
                     path("key.pem"), "-out", path("cert.pem")},
                    path("openssl"));
    ASSERT_EQ(openssl.Wait(absl::Seconds(30)), 0) << openssl.err();
    DaemonTest::SetUp();
  }
  std::vector<std::string> Flags() const override {
    return {"--tls-cert", path("cert.pem"), "--tls-key", path("key.pem")};
  }
  std::optional<client::TlsOptions> Tls() const override {
    client::TlsOptions tls;
    tls.root_certs = testing::ReadFile(path("cert.pem"));
    return tls;
  }
};

TEST_F(TlsE2e, ClientAndLatchctlShakeHands) {
  EXPECT_TRUE(client().GetModel().ok());
  const CtlResult status = Ctl({"status", "--tls-ca", path("cert.pem")});
  EXPECT_EQ(status.code, 0) << status.err;
  EXPECT_THAT(status.out, HasSubstr("cpu"));
}

TEST_F(TlsE2e, WhoDoesNotTrustItCannotConnect) {
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{"status"}, std::vector<std::string>{"status", "--tls"}}) {
    const CtlResult refused = Ctl(flags);
    EXPECT_EQ(refused.code, 3) << refused.out;
    EXPECT_THAT(refused.err, HasSubstr("cannot connect to " + daemon().address()));
  }
  // Nothing, a folder, and a file that holds something else.
  for (const std::string& file : {path("nothing.pem"), path(""), path("openssl.err")}) {
    const CtlResult refused = Ctl({"status", "--tls-ca", file});
    EXPECT_EQ(refused.code, 2) << file;
    EXPECT_EQ(refused.err, "latchctl: --tls-ca: expected a readable PEM file, got " + file + "\n");
  }
}

}  // namespace
}  // namespace latchd::e2e
