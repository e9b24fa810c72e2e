#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace latchd {

// Incremental SHA-256 (FIPS 180-4), from OpenSSL's libcrypto. Not thread-safe.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void Update(std::string_view bytes);
  // Lower-case hex, 64 characters. Starts afresh: the object can be used again.
  std::string Hex();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

std::string Sha256Hex(std::string_view bytes);

}  // namespace latchd
