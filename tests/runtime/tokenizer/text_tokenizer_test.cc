#include "runtime/tokenizer/text_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <thread>

#include "runtime/tokenizer/utf8.h"
#include "tests/runtime/tokenizer/test_tokenizer.h"

namespace latchd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::unique_ptr<Tokenizer> Make(const nlohmann::json& json) {
  auto tokenizer = Build(json);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

std::vector<int32_t> Ids(const Tokenizer& tokenizer, const std::string& text,
                         EncodeOptions options = {}) {
  auto ids = tokenizer.Encode(text, options);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return ids.ok() ? *ids : std::vector<int32_t>{-1};
}

// Well-formed text of random code points, many of them special to tokenizers.
std::string RandomText(std::mt19937& rng) {
  static constexpr char32_t kOdd[] = {' ', '\n', '<',   's',    '>',     'a',
                                      'b', 0,    0x301, 0x2581, 0x1F600, 0x200D};
  std::string text;
  for (int n = static_cast<int>(rng() % 40); n > 0; --n) {
    char32_t c =
        rng() % 2 ? kOdd[rng() % std::size(kOdd)] : static_cast<char32_t>(rng() % 0x110000);
    if (c >= 0xD800 && c < 0xE000) c = 'x';
    AppendUtf8(c, &text);
  }
  return text;
}

TEST(TextTokenizer, MergesByRankThenLeftmost) {
  const auto t = Make(ByteLevelJson());
  EXPECT_THAT(Ids(*t, "abc"), ElementsAre(257));
  EXPECT_THAT(Ids(*t, "aaa"), ElementsAre(258, 'a'));  // "aa" then "a"
}

TEST(TextTokenizer, LongestAddedTokenWinsAndSpecialOnesCanBePlainText) {
  nlohmann::json json = ByteLevelJson();
  const auto t = Make(json);
  EXPECT_THAT(Ids(*t, "<s><s>>"), ElementsAre(261, 262));
  const auto plain = Ids(*t, "<s>", {.parse_special_tokens = false});
  EXPECT_EQ(plain.size(), 3u);
  EXPECT_THAT(Ids(*t, "<s>>", {.parse_special_tokens = false}), ElementsAre(262));
  EXPECT_TRUE(t->IsSpecial(261));
  EXPECT_FALSE(t->IsSpecial(262));
  EXPECT_EQ(*t->Decode({261, 257}, /*skip_special=*/true), "abc");
  EXPECT_EQ(*t->Decode({261, 257}, /*skip_special=*/false), "<s>abc");
}

TEST(TextTokenizer, RefusesInvalidUtf8WithItsOffset) {
  const auto t = Make(ByteLevelJson());
  const std::pair<std::string, int> cases[] = {
      {"ab\xFF", 2}, {"\xC0\x80", 0},         {"x\xED\xA0\x80", 1}, {"0123456789\xE2\x82", 10},
      {"\x80", 0},   {"\xF4\x90\x80\x80", 0}, {"ok\xE2\x28\xA1", 2}};
  for (const auto& [text, offset] : cases) {
    const auto ids = t->Encode(text, {});
    ASSERT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(ids.status().message()),
                HasSubstr("at offset " + std::to_string(offset)));
  }
}

TEST(TextTokenizer, DecodeRefusesIdsOutsideTheVocabulary) {
  const auto t = Make(ByteLevelJson());
  for (const int32_t id : {-1, 263, INT32_MAX}) {
    const auto text = t->Decode({0, id}, true);
    ASSERT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(text.status().message()), HasSubstr("token_ids[1]"));
    EXPECT_EQ(t->TokenBytes(id), "");
    EXPECT_FALSE(t->IsSpecial(id));
  }
}

TEST(TextTokenizer, RoundTripsRandomText) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 rng(seed);
  const auto bytes = Make(ByteLevelJson());
  const auto pieces = Make(SentencePieceJson());
  for (int i = 0; i < 2000; ++i) {
    const std::string text = RandomText(rng);
    const EncodeOptions plain = {.add_special_tokens = false, .parse_special_tokens = false};
    EXPECT_EQ(*bytes->Decode(Ids(*bytes, text, plain), false), text);
    if (text.find("\u2581") == std::string::npos) {
      EXPECT_EQ(*pieces->Decode(Ids(*pieces, text, plain), false), text);
    }
  }
}

TEST(TextTokenizer, SentencePieceStyle) {
  const auto t = Make(SentencePieceJson());
  EXPECT_THAT(Ids(*t, "hi hi"), ElementsAre(1, 263, 263));
  EXPECT_THAT(Ids(*t, "\u00e9", {.add_special_tokens = false}),
              ElementsAre(259, 3 + 0xC3, 3 + 0xA9));
  EXPECT_EQ(*t->Decode({1, 263, 263}, true), "hi hi");
  EXPECT_EQ(*t->Decode({263}, true), "hi");
}

TEST(TextTokenizer, ALongWordIsNotQuadratic) {
  const auto t = Make(ByteLevelJson());
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(Ids(*t, std::string(1 << 20, 'a')).size(), size_t{1} << 18);  // "aaaa" each
  EXPECT_EQ(Ids(*t, std::string(1 << 20, ' ')).size(), size_t{1} << 20);
  // Quadratic would be hours.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

TEST(TextTokenizer, CombiningMarksAreNormalizedInReasonableTime) {
  nlohmann::json json = ByteLevelJson();
  json["normalizer"] = {{"type", "NFC"}};
  const auto t = Make(json);
  EXPECT_EQ(Ids(*t, "e\u0301"), Ids(*t, "\u00e9"));
  std::string marks = "a";
  for (int i = 0; i < 200000; ++i) marks += i % 2 ? "\u0301" : "\u0323";  // out of canonical order
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(Ids(*t, marks).empty());
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

TEST(TextTokenizer, IsThreadSafe) {
  const auto t = Make(ByteLevelJson());
  const std::string text = "abc aab <s> \u00e9 12";
  const auto expected = Ids(*t, text);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 200; ++k) EXPECT_EQ(*t->Encode(text, {}), expected);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(StreamingDetokenizer, NeverSplitsACharacterAndEqualsDecode) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 rng(seed);
  for (const auto& json : {ByteLevelJson(), SentencePieceJson()}) {
    const auto t = Make(json);
    for (int i = 0; i < 2000; ++i) {
      std::vector<int32_t> ids = Ids(*t, RandomText(rng));
      if (i % 2) {  // and sequences that are no text at all
        for (int32_t& id : ids) id = static_cast<int32_t>(rng() % t->vocab_size());
      }
      const bool skip = rng() % 2 != 0;
      StreamingDetokenizer stream(*t, skip);
      std::string whole;
      for (const int32_t id : ids) {
        const std::string piece = stream.Push(id);
        EXPECT_EQ(ValidUtf8Prefix(piece), piece.size());
        whole += piece;
      }
      whole += stream.Finish();
      EXPECT_EQ(whole, *t->Decode(ids, skip));
    }
  }
}

TEST(StreamingDetokenizer, HoldsBackIncompleteCharacters) {
  const auto t = Make(ByteLevelJson());
  StreamingDetokenizer stream(*t, true);
  EXPECT_EQ(stream.Push(0xE2), "");
  EXPECT_EQ(stream.Push(0x82), "");
  EXPECT_EQ(stream.Push(0xAC), "\u20ac");
  EXPECT_EQ(stream.Push(0xF0), "");
  EXPECT_EQ(stream.Push(0x9F), "");
  EXPECT_EQ(stream.Push('x'), "\ufffdx");  // one U+FFFD for the maximal subpart
  EXPECT_EQ(stream.Push(0xE2), "");
  EXPECT_EQ(stream.Finish(), "\ufffd");
  EXPECT_EQ(stream.Finish(), "");
}

}  // namespace
}  // namespace latchd
