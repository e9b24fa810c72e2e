#include "runtime/model/sha256.h"

#include <openssl/evp.h>

#include <array>
#include <cstdio>
#include <cstdlib>

namespace latchd {

struct Sha256::Context {
  EVP_MD_CTX* evp = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(evp); }

  // libcrypto fails here only without memory or without its SHA-256, and then no digest may be made
  // up.
  void Check(int result) {
    if (result == 1) return;
    std::fputs("latchd: libcrypto's SHA-256 failed\n", stderr);
    std::abort();
  }
  void Start() { Check(evp == nullptr ? 0 : EVP_DigestInit_ex(evp, EVP_sha256(), nullptr)); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) { context_->Start(); }

Sha256::~Sha256() = default;

void Sha256::Update(std::string_view bytes) {
  context_->Check(EVP_DigestUpdate(context_->evp, bytes.data(), bytes.size()));
}

std::string Sha256::Hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int size = 0;
  context_->Check(EVP_DigestFinal_ex(context_->evp, digest.data(), &size));
  context_->Start();
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (unsigned int i = 0; i < size; ++i) {
    out.push_back(kDigits[digest[i] >> 4]);
    out.push_back(kDigits[digest[i] & 15]);
  }
  return out;
}

std::string Sha256Hex(std::string_view bytes) {
  Sha256 hash;
  hash.Update(bytes);
  return hash.Hex();
}

}  // namespace latchd
