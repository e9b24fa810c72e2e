#include "runtime/model/gguf.h"

#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/model_files.h"

namespace latchd {
namespace {

using testing::Bytes;
using ::testing::ElementsAre;
using testing::GgufWriter;
using ::testing::HasSubstr;
using testing::TestTensor;

GgufWriter Example(uint32_t version = 3) {
  GgufWriter out(version);
  out.String("name", "value");
  out.Uint32("u32", 4000000000u);
  out.Uint64("u64", 1ull << 63);
  out.Float32("f32", 0.5f);
  out.Bool("yes", true);
  out.Strings("texts", {"a", "", "ccc"});
  out.Ints("ints", {-1, 2, 3});
  out.Floats("floats", {0.25f, -1.0f});
  out.Tensor({.name = "one", .shape = {2, 3}, .data = std::string(24, '\1')});
  out.Tensor(
      {.name = "two", .shape = {64}, .data = std::string(40, '\2'), .type = StorageType::kQ4_1});
  return out;
}

absl::StatusOr<std::unique_ptr<GgufFile>> Parse(const std::string& bytes) {
  return GgufFile::Parse("f.gguf", bytes);
}

TEST(GgufTest, ReadsMetadataAndTensorsOfBothVersions) {
  for (const uint32_t version : {2u, 3u}) {
    const std::string bytes = Example(version).Build();
    const auto file = Parse(bytes);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(*(*file)->String("name"), "value");
    EXPECT_EQ(*(*file)->Int("u32"), 4000000000);
    EXPECT_EQ(*(*file)->Float("f32"), 0.5);
    EXPECT_TRUE(*(*file)->Bool("yes"));
    EXPECT_THAT(*(*file)->Strings("texts"), ElementsAre("a", "", "ccc"));
    EXPECT_THAT(*(*file)->Ints("ints"), ElementsAre(-1, 2, 3));
    EXPECT_THAT(*(*file)->Floats("floats"), ElementsAre(0.25f, -1.0f));
    ASSERT_EQ((*file)->tensors().size(), 2u);
    EXPECT_EQ((*file)->tensors()[0].name, "one");
    EXPECT_THAT((*file)->tensors()[0].shape, ElementsAre(2, 3));
    EXPECT_EQ((*file)->tensors()[0].bytes, std::string(24, '\1'));
    EXPECT_EQ((*file)->tensors()[1].type, StorageType::kQ4_1);
    EXPECT_EQ((*file)->tensors()[1].bytes, std::string(40, '\2'));
    EXPECT_EQ((*file)->Find("absent"), nullptr);
  }
}

TEST(GgufTest, ConversionsNameKeyAndTypes) {
  const std::string bytes = Example().Build();
  const auto file = Parse(bytes);
  ASSERT_TRUE(file.ok());
  const auto message = [](const auto& result) { return std::string(result.status().message()); };
  EXPECT_EQ(message((*file)->Int("absent")), "f.gguf: metadata 'absent' is missing");
  EXPECT_EQ((*file)->Int("absent").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(message((*file)->Int("name")),
            "f.gguf: metadata 'name': expected an integer, got string");
  EXPECT_THAT(message((*file)->Int("f32")), HasSubstr("expected an integer, got float32"));
  EXPECT_THAT(message((*file)->Int("u64")),
              HasSubstr("expected an integer below 2^63, got 9223372036854775808"));
  EXPECT_THAT(message((*file)->String("u32")), HasSubstr("expected string, got uint32"));
  EXPECT_THAT(message((*file)->Strings("ints")),
              HasSubstr("expected array of string, got array of int32"));
  EXPECT_THAT(message((*file)->Ints("texts")),
              HasSubstr("expected array of integers, got array of string"));
  EXPECT_THAT(message((*file)->Bool("u32")), HasSubstr("expected bool, got uint32"));
}

// One way to break a file, and what the error must say.
struct Broken {
  const char* name;
  std::function<std::string()> make;
  const char* message;
};

// Overwrites bytes of Example() at `offset` past a key or a tensor's name.
std::string Patch(const char* name, size_t offset, const std::string& bytes) {
  const GgufWriter writer = Example();
  std::string out = writer.Build();
  return out.replace(writer.OffsetAfter(name) + offset, bytes.size(), bytes);
}
std::string PatchAt(size_t offset, const std::string& bytes) {
  std::string out = Example().Build();
  return out.replace(offset, bytes.size(), bytes);
}

TEST(GgufTest, RefusesHostileFiles) {
  // A tensor's fields after its name: dimensions u32, extents u64 each, type u32, offset u64.
  const Broken cases[] = {
      {"magic", [] { return PatchAt(0, "GGML"); }, "magic: expected 'GGUF', got 'GGML'"},
      {"short magic", [] { return std::string("GG"); },
       "magic: expected 4 bytes at offset 0, got 2"},
      {"version 1", [] { return PatchAt(4, Bytes<uint32_t>(1)); },
       "version: expected 2 or 3, little-endian, got 1"},
      {"big-endian", [] { return PatchAt(4, Bytes<uint32_t>(3u << 24)); }, "(a big-endian file)"},
      {"2^63 tensors", [] { return PatchAt(8, Bytes<uint64_t>(1ull << 63)); },
       "tensor_count: expected entries that fit the file, got 9223372036854775808"},
      {"2^64-1 keys", [] { return PatchAt(16, Bytes<uint64_t>(~0ull)); },
       "metadata_kv_count: expected entries that fit the file, got 18446744073709551615"},
      {"one key too many", [] { return PatchAt(16, Bytes<uint64_t>(9)); },
       "tensor 0 name: expected"},
      {"key length", [] { return PatchAt(24, Bytes<uint64_t>(1ull << 63)); },
       "metadata key 0: expected 92233720"},
      {"empty key", [] { return GgufWriter().Uint32("", 1).Build() + std::string(64, '\0'); },
       "metadata key 0: expected 1 to 65535 bytes, got 0"},
      {"value type", [] { return Patch("u32", 0, Bytes<uint32_t>(13)); },
       "metadata 'u32' type: expected a value type 0 to 12, got 13"},
      {"string length", [] { return Patch("name", 4, Bytes<uint64_t>(1ull << 62)); },
       "metadata 'name': expected 4611686018427387904 bytes"},
      {"array count", [] { return Patch("ints", 8, Bytes<uint64_t>(1ull << 63)); },
       "metadata 'ints' count: expected elements that fit the file, got 9223372036854775808"},
      {"array count that wraps", [] { return Patch("ints", 8, Bytes<uint64_t>((1ull << 62) + 1)); },
       "metadata 'ints' count: expected elements that fit"},
      {"string array count", [] { return Patch("texts", 8, Bytes<uint64_t>(1ull << 61)); },
       "metadata 'texts' count: expected elements that fit"},
      {"element length", [] { return Patch("texts", 16, Bytes<uint64_t>(1ull << 60)); },
       "metadata 'texts' element"},
      {"nested array", [] { return Patch("ints", 4, Bytes<uint32_t>(9)); },
       "metadata 'ints' element type: expected a scalar or string type 0 to 12, got a nested "
       "array"},
      {"element type", [] { return Patch("ints", 4, Bytes<uint32_t>(99)); },
       "metadata 'ints' element type"},
      {"second key", [] { return Example().Uint32("u32", 1).Build(); },
       "metadata 'u32': expected one entry"},
      {"alignment 0", [] { return Example().Uint32("general.alignment", 0).Build(); },
       "metadata 'general.alignment': expected a power of two up to 2^20, got 0"},
      {"alignment 48", [] { return Example().Uint32("general.alignment", 48).Build(); },
       "a power of two"},
      {"alignment text", [] { return Example().String("general.alignment", "x").Build(); },
       "expected an integer"},
      {"second tensor",
       [] {
         return Example()
             .Tensor({.name = "one", .shape = {1}, .data = std::string(4, '\0')})
             .Build();
       },
       "tensor 'one': expected one entry, got a second one"},
      {"no dimensions", [] { return Patch("one", 0, Bytes<uint32_t>(0)); },
       "tensor 'one' dimensions: expected 1 to 4"},
      {"2^31 dimensions", [] { return Patch("one", 0, Bytes<uint32_t>(1u << 31)); },
       "expected 1 to 4, got 2147483648"},
      {"zero extent", [] { return Patch("one", 4, Bytes<uint64_t>(0)); },
       "tensor 'one' shape: expected positive"},
      {"2^63 extent", [] { return Patch("one", 4, Bytes<uint64_t>(1ull << 63)); },
       "tensor 'one' shape"},
      {"product overflow",
       [] { return Patch("one", 4, Bytes<uint64_t>(1ull << 62) + Bytes<uint64_t>(16)); },
       "tensor 'one' shape: expected positive extents whose product fits the file"},
      {"bytes overflow",
       [] { return Patch("one", 4, Bytes<uint64_t>(1ull << 62) + Bytes<uint64_t>(2)); },
       "tensor 'one' shape: expected a size that fits the file"},
      {"unknown type", [] { return Patch("one", 20, Bytes<uint32_t>(77)); },
       "tensor 'one' type: unknown ggml type 77"},
      {"unsupported type", [] { return Patch("one", 20, Bytes<uint32_t>(16)); },
       "tensor 'one' type: IQ2_XXS is not supported"},
      {"partial block", [] { return Patch("two", 4, Bytes<uint64_t>(33)); },
       "tensor 'two' shape: expected rows of a multiple of 32 elements for Q4_1, got 33"},
      {"unaligned offset", [] { return Patch("two", 16, Bytes<uint64_t>(33)); },
       "tensor 'two' offset: expected a multiple of 32, got 33"},
      {"offset outside", [] { return Patch("two", 16, Bytes<uint64_t>(1ull << 40)); },
       "tensor 'two' offset: expected 40 bytes inside the data section of 72"},
      {"offset that wraps", [] { return Patch("two", 16, Bytes<uint64_t>(~0ull - 31)); },
       "tensor 'two' offset"},
      {"overlap", [] { return Patch("two", 16, Bytes<uint64_t>(0)); },
       "tensor 'two' offset: expected bytes apart from tensor 'one', got an overlap"},
      {"larger tensor", [] { return Patch("one", 4, Bytes<uint64_t>(30)); }, "offset: expected"},
  };
  for (const Broken& broken : cases) {
    SCOPED_TRACE(broken.name);
    const auto file = Parse(broken.make());
    ASSERT_FALSE(file.ok());
    EXPECT_THAT(std::string(file.status().message()), HasSubstr(broken.message));
    EXPECT_THAT(std::string(file.status().message()), ::testing::StartsWith("f.gguf: "));
  }
}

TEST(GgufTest, RefusesEveryTruncation) {
  const std::string bytes = Example().Build();
  for (size_t size = 0; size < bytes.size(); ++size) {
    // A copy of exactly that size, so that the sanitizer sees an over-read.
    const std::string cut(bytes.data(), size);
    EXPECT_FALSE(Parse(cut).ok()) << size;
  }
}

}  // namespace
}  // namespace latchd
