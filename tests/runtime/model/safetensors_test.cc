#include "runtime/model/safetensors.h"

#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/model_files.h"

namespace latchd {
namespace {

using testing::Bytes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::SafetensorsBytes;

absl::StatusOr<std::unique_ptr<SafetensorsFile>> Parse(const std::string& bytes) {
  return SafetensorsFile::Parse("m.safetensors", bytes);
}

std::string Header(const std::string& header, size_t data_bytes = 16) {
  return SafetensorsBytes(header, std::string(data_bytes, '\1'));
}

TEST(SafetensorsTest, ReadsTensors) {
  const std::string bytes = SafetensorsBytes({
      {.name = "a", .dtype = "BF16", .shape = {2, 3}, .data = std::string(12, 'a')},
      {.name = "b", .dtype = "I64", .shape = {}, .data = std::string(8, 'b')},
      {.name = "c", .dtype = "F32", .shape = {0, 4}, .data = ""},
  });
  const auto file = Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto& tensors = (*file)->tensors();
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_EQ(tensors[0].name, "a");
  EXPECT_EQ(tensors[0].type, StorageType::kBF16);
  EXPECT_THAT(tensors[0].shape, ElementsAre(2, 3));
  EXPECT_EQ(tensors[0].bytes, std::string(12, 'a'));
  EXPECT_FALSE(tensors[1].type.has_value());
  EXPECT_EQ(tensors[1].dtype, "I64");
  EXPECT_TRUE(tensors[2].bytes.empty());
}

TEST(SafetensorsTest, AllowsHolesMetadataAndEscapedNames) {
  const auto file = Parse(Header(R"({"__metadata__":{"format":"pt"},
      "\u0061\"":{"shape":[1],"data_offsets":[12,16],"dtype":"F32"}}   )"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->tensors()[0].name, "a\"");
}

TEST(SafetensorsTest, RefusesHostileFiles) {
  const std::string ok = R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  const struct {
    const char* name;
    std::string bytes;
    const char* message;
  } cases[] = {
      {"empty", "", "header length: expected 8 bytes, got 0"},
      {"seven bytes", std::string(7, '\0'), "header length: expected 8 bytes, got 7"},
      {"header longer than the file", Bytes<uint64_t>(100) + "{}",
       "header length: expected at most 2, got 100"},
      {"2^63 header", Bytes<uint64_t>(1ull << 63) + "{}",
       "header length: expected at most 2, got 92233720"},
      {"header above 100 MB", Bytes<uint64_t>(100'000'001) + std::string(100'000'100, ' '),
       "header length: expected at most 100000000"},
      {"not JSON", Header("{\"a\":"), "header: expected JSON, got a syntax error at byte"},
      {"empty header", Header(""), "header: expected JSON"},
      {"text after the header", Header("{} x"), "header: expected JSON"},
      {"invalid UTF-8", Header("{\"\xff\":" + ok + "}"), "header: expected JSON"},
      {"an array", Header("[]"), "header: expected an object of tensors, got an array"},
      {"deep nesting", Header(std::string(1'000'000, '[')),
       "header: expected an object of tensors"},
      {"deep nesting in a tensor", Header(R"({"a":{"dtype":{"a":{)"),
       "tensor 'a' dtype: expected a string"},
      {"deep nesting in a shape", Header(R"({"a":{"shape":[[[[)"),
       "tensor 'a' shape: expected an array of non-neg"},
      {"tensor is a number", Header(R"({"a":5})"), "tensor 'a': expected an object, got 5"},
      {"two of one name", Header("{\"a\":" + ok + ",\"a\":" + ok + "}"),
       "tensor 'a': expected one entry"},
      {"two shapes", Header(R"({"a":{"shape":[2],"shape":[2]}})"),
       "tensor 'a' shape: expected an array"},
      {"unknown key", Header(R"({"a":{"dtype":"F32","strides":[1]}})"),
       "tensor 'a' strides: expected dtype, shape or data_offsets"},
      {"no dtype", Header(R"({"a":{"shape":[2],"data_offsets":[0,8]}})"),
       "tensor 'a': expected a dtype, got none"},
      {"no shape", Header(R"({"a":{"dtype":"F32","data_offsets":[0,8]}})"),
       "tensor 'a': expected a shape"},
      {"no offsets", Header(R"({"a":{"dtype":"F32","shape":[2]}})"),
       "data_offsets: expected two numbers, got 0"},
      {"one offset", Header(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8]}})"),
       "expected two numbers, got 1"},
      {"three offsets", Header(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,8]}})"),
       "tensor 'a' data_offsets: expected two numbers, got more"},
      {"dtype", Header(R"({"a":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}})"),
       "tensor 'a' dtype: unknown 'F33'"},
      {"dtype is a number", Header(R"({"a":{"dtype":7}})"),
       "tensor 'a' dtype: expected a string, got 7"},
      {"negative extent", Header(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})"),
       "tensor 'a' shape: expected an array of non-negative integers, got -2"},
      {"fraction", Header(R"({"a":{"dtype":"F32","shape":[2.5],"data_offsets":[0,8]}})"),
       "got 2.5"},
      {"2^64 extent",
       Header(R"({"a":{"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,8]}})"),
       "tensor 'a' shape"},
      {"product overflow",
       Header(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})"),
       "tensor 'a' shape: expected a size that fits the file, got extent 4294967296"},
      {"nine dimensions",
       Header(R"({"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}})"),
       "expected at most 8 dimensions"},
      {"size of another dtype", Header(R"({"a":{"dtype":"F16","shape":[2],"data_offsets":[0,8]}})"),
       "tensor 'a' data_offsets: expected 4 bytes for its dtype and shape, got 8"},
      {"outside", Header(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[12,20]}})"),
       "expected a range inside the 16 data bytes, got [12, 20)"},
      {"backwards", Header(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})"),
       "got [8, 0)"},
      {"overlap",
       Header("{\"a\":" + ok + R"(,"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})"),
       "tensor 'b' data_offsets: expected bytes apart from tensor 'a', got an overlap"},
  };
  for (const auto& broken : cases) {
    SCOPED_TRACE(broken.name);
    const auto file = Parse(broken.bytes);
    ASSERT_FALSE(file.ok());
    EXPECT_THAT(std::string(file.status().message()), HasSubstr(broken.message));
    EXPECT_THAT(std::string(file.status().message()), ::testing::StartsWith("m.safetensors: "));
  }
}

TEST(SafetensorsTest, RefusesEveryTruncation) {
  const std::string bytes = SafetensorsBytes(
      {{.name = "a", .dtype = "F32", .shape = {2, 2}, .data = std::string(16, 'x')}});
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(Parse(std::string(bytes.data(), size)).ok()) << size;
}

TEST(SafetensorsTest, OpenRefusesWhatIsNotAFile) {
  const testing::TempDir dir;
  testing::WriteFile(dir.path("empty.safetensors"), "");
  std::filesystem::create_directory(dir.path("folder.safetensors"));
  std::filesystem::create_symlink("loop.safetensors", dir.path("loop.safetensors"));
  const auto status = [&](const char* name) {
    return SafetensorsFile::Open(dir.path(name)).status();
  };
  EXPECT_EQ(status("absent.safetensors").code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status("empty.safetensors").message()),
              HasSubstr("expected a model file, got an empty"));
  EXPECT_THAT(std::string(status("folder.safetensors").message()),
              HasSubstr("a regular file, got a directory"));
  EXPECT_EQ(status("loop.safetensors").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(SafetensorsFile::Open("/dev/null").status().message()),
              HasSubstr("a special file"));
}

}  // namespace
}  // namespace latchd
