#include "runtime/graph/signature.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "absl/hash/hash.h"

namespace latchd {
namespace {

Signature Base() {
  return {.backend = "cpu",
          .dtype = DType::kBF16,
          .rows = 4,
          .layers = 16,
          .hidden = 2048,
          .q_heads = 32,
          .kv_heads = 8,
          .head_dim = 64,
          .feed_forward = 8192,
          .vocab = 1000,
          .past_capacity = 512,
          .present_capacity = 512,
          .page_tokens = 64,
          .pool_pages = 9,
          .rotary_rows = 600};
}

// Every field, each changed alone. A field that is added to Signature and forgotten in the hash or
// in ToString shows here as soon as it is listed; the size check is the reminder to list it.
const std::vector<std::function<void(Signature&)>> kChanges = {
    [](Signature& s) { s.backend = "cuda"; },   [](Signature& s) { s.dtype = DType::kF16; },
    [](Signature& s) { s.rows = 8; },           [](Signature& s) { s.q_sequence = 2; },
    [](Signature& s) { s.k_sequence = 0; },     [](Signature& s) { s.layers += 1; },
    [](Signature& s) { s.hidden += 1; },        [](Signature& s) { s.q_heads += 1; },
    [](Signature& s) { s.kv_heads += 1; },      [](Signature& s) { s.head_dim += 1; },
    [](Signature& s) { s.feed_forward += 1; },  [](Signature& s) { s.vocab += 1; },
    [](Signature& s) { s.past_capacity += 1; }, [](Signature& s) { s.present_capacity += 1; },
    [](Signature& s) { s.page_tokens += 1; },   [](Signature& s) { s.pool_pages += 1; },
    [](Signature& s) { s.rotary_rows += 1; },   [](Signature& s) { s.window = 128; },
    [](Signature& s) { s.packed_qkv = false; },
};

TEST(Signature, EveryFieldCountsInEqualityHashAndText) {
  static_assert(sizeof(Signature) == sizeof(std::string) + 88, "list the new field in kChanges");
  std::set<std::string> texts = {Base().ToString()};
  std::set<size_t> hashes = {absl::HashOf(Base())};
  for (size_t i = 0; i < kChanges.size(); ++i) {
    Signature changed = Base();
    kChanges[i](changed);
    EXPECT_FALSE(changed == Base()) << "field " << i;
    EXPECT_TRUE(texts.insert(changed.ToString()).second) << changed.ToString();
    EXPECT_TRUE(hashes.insert(absl::HashOf(changed)).second) << "field " << i;
  }
}

TEST(Signature, EqualValuesAreOneKey) {
  EXPECT_EQ(Base(), Base());
  EXPECT_EQ(absl::HashOf(Base()), absl::HashOf(Base()));
  EXPECT_EQ(Base().ToString(), Base().ToString());
}

TEST(Signature, TextNamesWhatPeopleLookFor) {
  EXPECT_EQ(Base().ToString(),
            "cpu bf16 rows=4 q=1 k=1 layers=16 hidden=2048 heads=32/8x64 ff=8192 vocab=1000 "
            "past=512 present=512 page=64 pool=9 rotary=600 window=-1 packed");
}

}  // namespace
}  // namespace latchd
