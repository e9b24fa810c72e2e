// What a generation shows of its text, and what ends it.

#include "tests/runtime/sched/puppet.h"

namespace latchd {
namespace {

using testing::GenerateAnswer;
using testing::IsOk;
using testing::Puppet;
using testing::PuppetOptions;

constexpr int32_t kEos = 95, kAccent = 94;

// One letter a token; kAccent is the first byte of a two-byte character, 93 its second.
class Letters final : public Tokenizer {
 public:
  static char Letter(int32_t id) { return static_cast<char>('a' + id % 26); }
  std::string TokenBytes(int32_t id) const override {
    if (id == kEos) return "<eos>";
    if (id == kAccent) return "\xc3";
    return id == 93 ? "\xa9" : std::string(1, Letter(id));
  }
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view,
                                              const EncodeOptions&) const override {
    return absl::UnimplementedError("not used");
  }
  absl::StatusOr<std::string> Decode(const std::vector<int32_t>&, bool) const override {
    return absl::UnimplementedError("not used");
  }
  bool IsSpecial(int32_t id) const override { return id == kEos; }
  std::optional<int32_t> TokenToId(std::string_view) const override { return std::nullopt; }
  int32_t vocab_size() const override { return 96; }
  std::optional<int32_t> bos_token() const override { return std::nullopt; }
  std::vector<int32_t> eos_tokens() const override { return {kEos}; }
  const std::string& chat_template() const override { return template_; }

 private:
  std::string template_;
};

const Letters kLetters;

struct StepLoopText : ::testing::Test {
  Puppet puppet{PuppetOptions{.tokenizer = &kLetters}};

  // Greedy with a bias so strong that only these tokens can come.
  static SamplingOptions Only(const std::vector<int32_t>& tokens) {
    SamplingOptions sampling;
    for (const int32_t token : tokens) sampling.logit_bias.emplace_back(token, 1000.0f);
    return sampling;
  }
  std::shared_ptr<GenerateAnswer> Run(GenerateRequest request) {
    request.session = puppet.Open({.capacity_tokens = 64});
    if (request.prompt.empty()) request.prompt = {1};
    return puppet.RunGenerate(std::move(request));
  }
};

TEST_F(StepLoopText, TheTextIsThatOfTheTokens) {
  SamplingOptions sampling = {.temperature = 1.5f};
  for (int32_t token = 93; token < 96; ++token) sampling.logit_bias.emplace_back(token, -1000.0f);
  const auto answer = Run({.max_tokens = 12, .sampling = sampling});
  std::string expected;
  for (const int32_t token : answer->tokens()) expected += Letters::Letter(token);
  EXPECT_EQ(answer->text(), expected);
  EXPECT_EQ(expected.size(), 12u);
}

TEST_F(StepLoopText, EosEndsUnlessItIsIgnored) {
  auto ended = Run({.max_tokens = 5, .sampling = Only({kEos})});
  EXPECT_EQ(ended->summary.reason, FinishReason::kStopToken);
  EXPECT_EQ(ended->tokens(), (std::vector<int32_t>{kEos})) << "the token is reported";
  EXPECT_EQ(ended->text(), "") << "and has no text";
  auto ignored = Run({.max_tokens = 5, .sampling = Only({kEos}), .ignore_eos = true});
  EXPECT_EQ(ignored->summary.reason, FinishReason::kLength);
  EXPECT_EQ(ignored->events.size(), 5u);
  auto own =
      Run({.max_tokens = 5, .sampling = Only({7}), .stop_tokens = {3, 7}, .ignore_eos = true});
  EXPECT_EQ(own->summary.reason, FinishReason::kStopToken);
  EXPECT_EQ(own->text(), "");
}

TEST_F(StepLoopText, AStopStringEndsAndIsNotShown) {
  auto answer = Run({.max_tokens = 9, .sampling = Only({2}), .stop_strings = {"ccc", "never"}});
  EXPECT_EQ(answer->summary.reason, FinishReason::kStopString);
  EXPECT_EQ(answer->summary.matched_stop, "ccc");
  EXPECT_EQ(answer->text(), "");
  EXPECT_EQ(answer->summary.generated_tokens, 3);
}

TEST_F(StepLoopText, TextHeldBackIsGivenWhateverEndsTheGeneration) {
  auto at_length = Run({.max_tokens = 3, .sampling = Only({2}), .stop_strings = {"cccc"}});
  EXPECT_EQ(at_length->summary.reason, FinishReason::kLength);
  for (const GeneratedToken& event : at_length->events) EXPECT_EQ(event.text, "");
  EXPECT_EQ(at_length->summary.text, "ccc");

  const SessionId session = puppet.Open();
  auto cancelled = puppet.Generate({.session = session,
                                    .prompt = {1},
                                    .max_tokens = 9,
                                    .sampling = Only({2}),
                                    .stop_strings = {"cccc"}});
  puppet.Turns(2);
  puppet.loop->Cancel(cancelled->id);
  EXPECT_EQ(cancelled->summary.reason, FinishReason::kCancelled);
  EXPECT_EQ(cancelled->summary.text, "cc");
}

TEST_F(StepLoopText, AViolationDoesNotTakeTextBack) {
  const SessionId session = puppet.Open();
  auto violated = puppet.Generate({.session = session,
                                   .prompt = {1},
                                   .max_tokens = 9,
                                   .sampling = Only({2}),
                                   .stop_strings = {"cccc"}});
  puppet.Turns(2);
  constexpr int32_t kFirstSlot = KvCache::kScratchSlot + 1;
  ASSERT_THAT(puppet.kv->CorruptPageTable(kFirstSlot, 0, 999), IsOk());
  puppet.RunUntilIdle();
  EXPECT_EQ(violated->summary.reason, FinishReason::kViolation);
  EXPECT_TRUE(violated->summary.violation.has_value());
  EXPECT_EQ(violated->text(), "cc");
}

TEST_F(StepLoopText, HalfACharacterIsHeldBackAndReplacedOnlyAtTheEnd) {
  auto answer = Run({.max_tokens = 2, .sampling = Only({kAccent})});
  EXPECT_EQ(answer->events[0].text, "");
  EXPECT_EQ(answer->text(), "\xef\xbf\xbd\xef\xbf\xbd");
}

}  // namespace
}  // namespace latchd
