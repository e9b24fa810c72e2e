#include "runtime/model/dequantize.h"

#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/api/convert.h"
#include "tests/support/model_files.h"

namespace latchd {
namespace {

const std::map<uint32_t, StorageType> kGgmlTypes = {
    {0, StorageType::kF32},   {1, StorageType::kF16},   {30, StorageType::kBF16},
    {8, StorageType::kQ8_0},  {2, StorageType::kQ4_0},  {3, StorageType::kQ4_1},
    {6, StorageType::kQ5_0},  {7, StorageType::kQ5_1},  {12, StorageType::kQ4_K},
    {13, StorageType::kQ5_K}, {14, StorageType::kQ6_K},
};

struct Golden {
  StorageType type;
  std::string blocks;
  std::vector<float> values;
};

// tests/golden/make_dequantize_golden.py describes the file.
std::vector<Golden> ReadGolden() {
  const std::string bytes = testing::ReadFile(LATCHD_GOLDEN_DIR "/dequantize.bin");
  std::vector<Golden> out;
  for (size_t at = 0; at < bytes.size();) {
    uint32_t head[3];
    std::memcpy(head, bytes.data() + at, sizeof(head));
    at += sizeof(head);
    Golden golden{.type = kGgmlTypes.at(head[0])};
    golden.blocks =
        bytes.substr(at, head[1] * static_cast<size_t>(Traits(golden.type).block_bytes));
    at += golden.blocks.size();
    golden.values.resize(head[2]);
    std::memcpy(golden.values.data(), bytes.data() + at, head[2] * sizeof(float));
    at += head[2] * sizeof(float);
    out.push_back(std::move(golden));
  }
  return out;
}

TEST(DequantizeTest, EqualsTheReferencePackageBitForBit) {
  const std::vector<Golden> all = ReadGolden();
  ASSERT_EQ(all.size(), kGgmlTypes.size());
  for (const Golden& golden : all) {
    SCOPED_TRACE(std::string(Traits(golden.type).name));
    std::vector<float> out(golden.values.size(), NAN);
    Dequantize(golden.type, golden.blocks.data(), static_cast<int64_t>(out.size()), out.data());
    for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], golden.values[i]) << "element " << i;
  }
}

TEST(DequantizeTest, SixteenBitResultsAreTheRoundedF32Results) {
  for (const Golden& golden : ReadGolden()) {
    for (const DType as : {DType::kF32, DType::kF16, DType::kBF16}) {
      SCOPED_TRACE(std::string(Traits(golden.type).name) + " as " + std::string(Name(as)));
      std::string out(golden.values.size() * SizeOf(as), '\xee'), expected(out.size(), '\0');
      DequantizeAs(golden.type, golden.blocks.data(), static_cast<int64_t>(golden.values.size()),
                   as, out.data());
      ConvertFromF32(as, golden.values.data(), expected.data(), golden.values.size());
      EXPECT_EQ(out, expected);
    }
  }
}

TEST(DequantizeTest, ReadsAnyAlignmentAndAnyLength) {
  std::mt19937 random(std::random_device{}());
  std::normal_distribution<float> normal;
  for (const int64_t n : {1, 3, 2047, 2048, 2049, 5000}) {
    std::vector<uint16_t> words(static_cast<size_t>(n));
    std::vector<float> expected;
    for (uint16_t& word : words) {
      word = F32ToF16(normal(random));
      expected.push_back(F16ToF32(word));
    }
    std::string shifted(words.size() * 2 + 1, '\0');
    std::memcpy(shifted.data() + 1, words.data(), words.size() * 2);
    std::vector<float> out(words.size());
    DequantizeAs(StorageType::kF16, shifted.data() + 1, n, DType::kF32, out.data());
    EXPECT_EQ(out, expected) << n;
  }
}

TEST(DequantizeTest, NarrowingTakesThePathOfTheCpuWithTheSameBits) {
  std::mt19937 random(std::random_device{}());
  std::vector<float> values = {0.0f,   -0.0f, 65519.0f, 65520.0f,  1e-8f,
                               -6e-5f, 3e-8f, INFINITY, -INFINITY, NAN};
  for (int i = 0; i < 10007; ++i) {  // any bits: every exponent, subnormals, NaN payloads
    const auto bits = static_cast<uint32_t>(random());
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    values.push_back(value);
  }
  std::vector<uint16_t> out(values.size());
  DequantizeAs(StorageType::kF32, values.data(), static_cast<int64_t>(values.size()), DType::kF16,
               out.data());
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(out[i], F32ToF16(values[i])) << values[i];
}

TEST(DequantizeTest, KeepsInfinityAndNanOfHalfScales) {
  std::string block(34, '\1');
  const uint16_t infinity = 0x7c00;
  std::memcpy(block.data(), &infinity, 2);
  float out[32];
  Dequantize(StorageType::kQ8_0, block.data(), 32, out);
  EXPECT_TRUE(std::isinf(out[0]));
}

}  // namespace
}  // namespace latchd
