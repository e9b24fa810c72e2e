#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "runtime/tokenizer/pattern.h"
#include "tests/runtime/tokenizer/test_tokenizer.h"

namespace latchd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Pointer = nlohmann::json::json_pointer;

struct Bad {
  const char* where;  // what is replaced or added
  const char* with;   // by what, as JSON
  absl::StatusCode code;
  const char* message;
};

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

TEST(TokenizerJson, NamesWhatIsWrong) {
  const Bad cases[] = {
      {"", "[]", kInvalid, "model: expected an object"},
      {"/model", "7", kInvalid, "model: expected an object, got 7"},
      {"/model/type", "\"Unigram\"", kUnimplemented, "model.type: the model Unigram"},
      {"/model/type", "3", kInvalid, "model.type: expected a string, got 3"},
      {"/model/vocab", "[1]", kInvalid, "model.vocab: expected an object, got an array of 1"},
      {"/model/vocab", "{}", kInvalid, "model.vocab: expected at least one token"},
      {"/model/vocab/ab", "\"x\"", kInvalid, "model.vocab.ab: expected an integer id, got \"x\""},
      {"/model/vocab/ab", "1.5", kInvalid, "model.vocab.ab: expected an integer id, got 1.5"},
      {"/model/vocab/ab", "-1", kInvalid, "expected an integer in 0..4194303, got -1"},
      {"/model/vocab/ab", "2147483648", kInvalid, "in 0..4194303, got 2147483648"},
      {"/model/vocab/ab", "18446744073709551615", kInvalid, "got 18446744073709551615"},
      {"/model/vocab/ab", "257", kInvalid, "id 257 is given to two tokens"},
      {"/model/vocab/", "300", kInvalid, "token 300 is empty"},
      {"/model/merges", "null", kInvalid, "model.merges: expected an array, got null"},
      {"/model/merges/0", "\"ab\"", kInvalid, "model.merges[0]: expected two tokens"},
      {"/model/merges/0", "\"a b c\"", kInvalid, "model.merges[0]: expected two tokens"},
      {"/model/merges/1", "[\"a\"]", kInvalid, "model.merges[1]: expected two tokens"},
      {"/model/merges/1", "[\"a\", 2]", kInvalid, "model.merges[1][1]: expected a string, got 2"},
      {"/model/merges/1", "\"a nix\"", kInvalid, "needs the token 'nix'"},
      {"/model/merges/1", "\"a z\"", kInvalid, "needs the token 'az'"},
      {"/model/unk_token", "\"nix\"", kInvalid, "model.unk_token: expected a token"},
      {"/model/byte_fallback", "1", kInvalid, "model.byte_fallback: expected true or false"},
      {"/model/continuing_subword_prefix", "\"##\"", kUnimplemented, "continuing_subword_prefix"},
      {"/model/end_of_word_suffix", "\"</w>\"", kUnimplemented, "end_of_word_suffix"},
      {"/added_tokens", "{}", kInvalid, "added_tokens: expected an array"},
      {"/added_tokens/0/id", "\"1\"", kInvalid, "added_tokens[0].id: expected an integer"},
      {"/added_tokens/0/id", "4294967296", kInvalid, "got 4294967296"},
      {"/added_tokens/0/id", "97", kInvalid, "its id 97 belongs to another token"},
      {"/added_tokens/0/content", "\"ab\"", kInvalid, "expected id 256 as in the vocabulary"},
      {"/added_tokens/0/content", "\"\"", kInvalid, "expected text that is not empty"},
      {"/added_tokens/0/special", "\"yes\"", kInvalid, "added_tokens[0].special: expected true"},
      {"/normalizer", "{\"type\":\"Precompiled\"}", kUnimplemented, "the normalizer Precompiled"},
      {"/normalizer", "{\"type\":\"Replace\",\"pattern\":{},\"content\":\"\"}", kInvalid,
       "normalizer.pattern: expected an object with String or Regex"},
      {"/pre_tokenizer", "{\"type\":\"BertPreTokenizer\"}", kUnimplemented, "BertPreTokenizer"},
      {"/pre_tokenizer", "{\"kind\":1}", kInvalid,
       "pre_tokenizer.type: expected a string, got nothing"},
      {"/pre_tokenizer",
       "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a\"},\"behavior\":\"Isolated\"}", kInvalid,
       "pre_tokenizer.pattern.Regex: not a regular expression"},
      {"/pre_tokenizer", "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Cut\"}",
       kInvalid, "pre_tokenizer.behavior: expected Removed"},
      {"/post_processor", "{\"type\":\"BertProcessing\"}", kUnimplemented, "BertProcessing"},
      {"/post_processor", "{\"type\":\"TemplateProcessing\",\"single\":[]}", kInvalid,
       "post_processor.single: expected exactly one Sequence"},
      {"/post_processor",
       "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"q\"}}]}", kInvalid,
       "SpecialToken.id: expected a name of special_tokens, got \"q\""},
      {"/post_processor",
       "{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{}},{\"SpecialToken\":{\"id\":"
       "\"q\"}}],\"special_tokens\":{\"q\":{\"ids\":[999999]}}}",
       kInvalid, "post_processor: expected an id below 263, got 999999"},
      {"/decoder", "null", kInvalid, "decoder: expected a decoder, got null"},
      {"/decoder", "{\"type\":\"WordPiece\"}", kUnimplemented, "the decoder WordPiece"},
      {"/decoder", "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Strip\"}]}", kUnimplemented,
       "Strip other than"},
  };
  for (const Bad& bad : cases) {
    SCOPED_TRACE(std::string(bad.where) + " = " + bad.with);
    nlohmann::json json = ByteLevelJson();
    json[Pointer(bad.where)] = nlohmann::json::parse(bad.with);
    const auto tokenizer = Build(json);
    EXPECT_EQ(tokenizer.status().code(), bad.code) << tokenizer.status();
    EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr(bad.message));
  }
}

TEST(TokenizerJson, SurvivesNestingAndNoise) {
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "[";
  for (const std::string& text : {deep, std::string("{\"model\":"), std::string("\xFF\xFE"),
                                  std::string(), std::string("\"\xC3\"")}) {
    const auto parts = ParseTokenizerJson("f.json", text);
    ASSERT_EQ(parts.status().code(), kInvalid);
    EXPECT_THAT(std::string(parts.status().message()), HasSubstr("f.json: "));
  }
  nlohmann::json step = {{"type", "NFC"}};
  for (int i = 0; i < 100; ++i) step = {{"type", "Sequence"}, {"normalizers", {step}}};
  nlohmann::json json = ByteLevelJson();
  json["normalizer"] = step;
  EXPECT_THAT(std::string(Build(json).status().message()), HasSubstr("16 levels"));
}

TEST(TokenizerJson, HolesInTheVocabularyDecodeToNothing) {
  nlohmann::json json = ByteLevelJson();
  json["added_tokens"][0]["id"] = 5000;
  const auto t = Build(json);
  ASSERT_TRUE(t.ok()) << t.status();
  EXPECT_EQ((*t)->vocab_size(), 5001);
  EXPECT_EQ(*(*t)->Decode({4000, 5000, 97}, false), std::string("<s>") + (*t)->TokenBytes(97));
}

TEST(Pattern, TranslatesOniguruma) {
  EXPECT_EQ(*TranslateOniguruma(R"(\s[^\s]\p{L}+\u00e9)"),
            R"(\p{White_Space}[^\p{White_Space}]\p{L}+\x{00e9})");
  for (const char* refused : {R"([a&&b])", R"([[:alpha:]])", R"(\h)", R"(a{1,3}+)", R"((?m).)",
                              R"((*UCP)a)", R"(\K)", R"([\W])"}) {
    EXPECT_EQ(TranslateOniguruma(refused).status().code(), kUnimplemented) << refused;
  }
  for (const char* wrong : {R"(\u12)", "\\", "a)", "[", "\xFF"}) {
    EXPECT_EQ(Pattern::Compile(wrong).status().code(), kInvalid) << wrong;
  }
}

TEST(Pattern, AHostilePatternGivesUp) {
  const auto pattern = Pattern::Compile("(a+)+$");
  ASSERT_TRUE(pattern.ok());
  const std::string text = std::string(60, 'a') + "b";
  const auto matches = (*pattern)->FindAll(text, {{0, static_cast<uint32_t>(text.size())}});
  EXPECT_EQ(matches.status().code(), absl::StatusCode::kResourceExhausted) << matches.status();
}

class LoadTokenizerTest : public ::testing::Test {
 protected:
  LoadTokenizerTest()
      : folder_(std::filesystem::path(testing::TempDir()) /
                ("latchd_tokenizer_" + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~LoadTokenizerTest() override { std::filesystem::remove_all(folder_); }
  void Write(const char* name, const std::string& text) { std::ofstream(folder_ / name) << text; }
  auto Load() { return LoadTokenizer(folder_.string()); }

  std::filesystem::path folder_;
};

TEST_F(LoadTokenizerTest, ReadsTheFolder) {
  EXPECT_EQ(Load().status().code(), absl::StatusCode::kNotFound);
  Write("tokenizer.json", ByteLevelJson().dump());
  Write("tokenizer_config.json",
        R"({"bos_token": {"content": "<s>"}, "eos_token": "<s>>", "add_bos_token": true,
            "chat_template": [{"name": "x", "template": "no"}, {"name": "default", "template": "yes"}]})");
  Write("generation_config.json", R"({"eos_token_id": [262, 7]})");
  const auto t = Load();
  ASSERT_TRUE(t.ok()) << t.status();
  EXPECT_EQ((*t)->bos_token(), 261);
  EXPECT_THAT((*t)->eos_tokens(), ElementsAre(262, 7));
  EXPECT_EQ((*t)->chat_template(), "yes");
  EXPECT_THAT(*(*t)->Encode("abc", {}), ElementsAre(261, 257));
  EXPECT_THAT(*(*t)->Encode("abc", {.add_special_tokens = false}), ElementsAre(257));
  EXPECT_EQ(ApplyChatTemplate(**t, {{"user", "hi"}}).status().code(), kUnimplemented);
}

TEST_F(LoadTokenizerTest, NamesTheFileAndField) {
  Write("tokenizer.json", ByteLevelJson().dump());
  Write("tokenizer_config.json", R"({"eos_token": "nix"})");
  EXPECT_THAT(std::string(Load().status().message()),
              HasSubstr("tokenizer_config.json: eos_token: expected a token of the vocabulary"));
  Write("tokenizer_config.json", "{}");
  Write("generation_config.json", R"({"eos_token_id": 9999})");
  EXPECT_THAT(std::string(Load().status().message()), HasSubstr("eos token: expected an id below"));
  std::filesystem::remove(folder_ / "tokenizer.json");
  Write("tokenizer.model", "not a model");
  EXPECT_EQ(Load().status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(Load().status().message()), HasSubstr("tokenizer.model"));
}

}  // namespace
}  // namespace latchd
