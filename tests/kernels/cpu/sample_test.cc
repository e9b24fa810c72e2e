#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "kernels/api/op_table.h"
#include "kernels/api/philox.h"
#include "tests/support/reference_ops.h"
#include "tests/support/reference_random.h"

namespace latchd {
namespace {

using reference::Random;

constexpr int32_t kSlots = 8, kMaxPages = 4, kPageShift = 3, kPageTokens = 8;

// Sampling rows over slots with a paged, scrambled history.
struct SampleWorld {
  Random& random;
  int32_t vocab;
  std::vector<Latch> latch = std::vector<Latch>(kSlots, Latch{});
  std::vector<int32_t> next_token = std::vector<int32_t>(kSlots, -9);
  std::vector<int32_t> pages, history, workspace;
  std::vector<SlotSampling> sampling;
  std::vector<LogitBias> bias = std::vector<LogitBias>(kSlots * kMaxLogitBias);
  std::vector<StepRow> inputs;
  std::vector<RowMeta> meta;
  std::vector<float> logits;
  std::vector<RowResult> results;
  StepInputsHeader header = {41, 0};

  SampleWorld(Random& r, int32_t vocab_in) : random(r), vocab(vocab_in) {
    for (int32_t p = 0; p < kSlots * kMaxPages; ++p) pages.push_back(p);
    random.Shuffle(pages);
    history.assign(pages.size() * kPageTokens, -1);
    sampling.assign(kSlots, {.temperature = 0, .top_p = 1, .repetition_penalty = 1});
  }
  SampleWorld(const SampleWorld&) = delete;

  SlotTables Tables() {
    return {.latch = latch.data(),
            .next_token = next_token.data(),
            .page_table = pages.data(),
            .sampling = sampling.data(),
            .bias = bias.data(),
            .history = history.data(),
            .slots = kSlots,
            .max_pages = kMaxPages,
            .pool_pages = kSlots * kMaxPages,
            .page_shift = kPageShift,
            .page_tokens = kPageTokens};
  }
  // Adds a row for `slot` with this history; returns its index.
  size_t Add(int32_t slot, const std::vector<int32_t>& tokens,
             const std::vector<float>& row_logits) {
    for (size_t t = 0; t < tokens.size(); ++t)
      *Tables().History(slot, static_cast<int32_t>(t)) = tokens[t];
    const int32_t total = static_cast<int32_t>(tokens.size());
    inputs.push_back({slot, 0, total - 1, kRowSample, 0, 100 + slot});
    meta.push_back({slot, 0, total - 1, total, total - 1, kRowSample});
    logits.insert(logits.end(), row_logits.begin(), row_logits.end());
    return meta.size() - 1;
  }
  std::vector<double> Row(const std::vector<float>& all, size_t row) const {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(row) * vocab;
    return std::vector<double>(begin, begin + vocab);
  }
  void Run() {
    results.assign(meta.size(), RowResult{});
    SampleOp op = {.meta = meta.data(),
                   .inputs = inputs.data(),
                   .header = &header,
                   .logits = logits.data(),
                   .vocab = vocab,
                   .tables = Tables(),
                   .layers = 30,
                   .results = results.data(),
                   .rows = static_cast<int32_t>(meta.size())};
    workspace.assign(CpuOps().workspace_bytes({op}) / sizeof(int32_t), 0);
    op.workspace = workspace.data();
    op.workspace_bytes = workspace.size() * sizeof(int32_t);
    const OpStatus status = CpuOps().sample(op, nullptr);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(std::count(workspace.begin(), workspace.end(), 0),
              static_cast<int64_t>(workspace.size()))
        << "the workspace was left dirty";
    for (const RowResult& result : results) EXPECT_EQ(result.sequence, 41);
  }
};

std::vector<int32_t> RandomHistory(Random& random, int32_t vocab, int32_t length) {
  std::vector<int32_t> tokens;
  const int32_t prompt = random.Int(1, length);
  for (int32_t t = 0; t < length; ++t) {
    tokens.push_back(random.Int(0, std::min(vocab - 1, 20)) | (t < prompt ? kPromptBit : 0));
  }
  return tokens;
}

TEST(SampleTest, GreedyTakesTheLowestOfEqualLogits) {
  Random random;
  SCOPED_TRACE(random.note());
  SampleWorld w(random, 1003);
  std::vector<float> logits = random.Normals(1003);
  const int32_t a = random.Int(0, 500), b = random.Int(501, 1002);
  logits[static_cast<size_t>(a)] = logits[static_cast<size_t>(b)] = 50;
  w.Add(3, {1}, logits);
  w.Run();
  EXPECT_EQ(w.results[0].token, a);
  EXPECT_EQ(w.next_token[3], a);
  EXPECT_NEAR(w.results[0].logprob, std::log(0.5), 1e-5);
}

TEST(SampleTest, BiasPenaltiesAndLogprobsAgreeWithTheFormula) {
  Random random;
  SCOPED_TRACE(random.note());
  for (int i = 0; i < 40; ++i) {
    SampleWorld w(random, random.Int(25, 700));
    std::vector<std::vector<double>> expected;
    const int32_t rows = random.Int(1, kSlots);
    for (int32_t slot = 0; slot < rows; ++slot) {
      SlotSampling& s = w.sampling[static_cast<size_t>(slot)];
      s.repetition_penalty = random.Chance(0.5) ? 1.0f : 1.4f;
      s.presence_penalty = random.Chance(0.5) ? 0.0f : random.Normal();
      s.frequency_penalty = random.Chance(0.5) ? 0.0f : random.Normal();
      s.top_logprobs = random.Int(0, kMaxTopLogprobs);
      std::vector<LogitBias> bias;
      for (s.bias_count = 0; s.bias_count < random.Int(0, 5); ++s.bias_count) {
        bias.push_back({random.Int(0, w.vocab - 1), random.Normal(3)});
        w.bias[static_cast<size_t>(slot * kMaxLogitBias + s.bias_count)] = bias.back();
      }
      const std::vector<int32_t> history = RandomHistory(random, w.vocab, random.Int(1, 30));
      const std::vector<float> logits = random.Normals(static_cast<size_t>(w.vocab), 2.0f);
      w.Add(slot, history, logits);
      expected.push_back(reference::Penalised(std::vector<double>(logits.begin(), logits.end()),
                                              bias, history, s));
    }
    w.Run();
    for (size_t r = 0; r < expected.size(); ++r) {
      const std::vector<double> log_probs = reference::LogSoftmax(expected[r]);
      const RowResult& result = w.results[r];
      ASSERT_GE(result.token, 0);
      const double best = *std::max_element(log_probs.begin(), log_probs.end());
      EXPECT_NEAR(log_probs[static_cast<size_t>(result.token)], best, 1e-5);
      EXPECT_NEAR(result.logprob, best, 1e-5);
      ASSERT_EQ(result.top_count, w.sampling[r].top_logprobs);
      std::vector<double> sorted = log_probs;
      std::sort(sorted.rbegin(), sorted.rend());
      for (int32_t t = 0; t < result.top_count; ++t) {
        EXPECT_NEAR(result.top_logprob[t], sorted[static_cast<size_t>(t)], 1e-5);
        EXPECT_NEAR(log_probs[static_cast<size_t>(result.top_token[t])],
                    sorted[static_cast<size_t>(t)], 1e-5);
        if (t > 0 && result.top_logprob[t] == result.top_logprob[t - 1]) {
          EXPECT_GT(result.top_token[t], result.top_token[t - 1]);
        }
      }
    }
  }
}

TEST(SampleTest, NonFiniteLatchesOnlyItsOwnSlot) {
  Random random;
  SCOPED_TRACE(random.note());
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    SampleWorld w(random, 333), alone(random, 333);
    const std::vector<float> good = random.Normals(333);
    std::vector<float> broken = random.Normals(333);
    const int32_t at = random.Int(0, 332);
    broken[static_cast<size_t>(at)] = bad;
    broken[332] = bad;
    w.Add(0, {1, 2}, good);
    w.Add(1, {1, 2}, broken);
    w.Add(2, {1, 2}, good);
    w.Run();
    EXPECT_EQ(w.results[1].token, -1);
    EXPECT_EQ(w.next_token[1], -9) << "a violated step must not change the next token";
    for (const Latch& l : {w.latch[1], w.results[1].latch}) {
      EXPECT_EQ(l.mask, kNonFinite);
      EXPECT_EQ(l.first, kNonFinite);
      EXPECT_EQ(l.layer, 30);
      EXPECT_EQ(l.row, 1);
      EXPECT_EQ(l.step, 101);
      EXPECT_EQ(l.value, at);
      EXPECT_EQ(l.limit, 333);
    }
    alone.Add(2, {1, 2}, good);
    alone.Run();
    EXPECT_EQ(w.results[2].token, alone.results[0].token);
    EXPECT_EQ(std::memcmp(&w.results[2].logprob, &alone.results[0].logprob, 4), 0);
    EXPECT_EQ(w.latch[0].mask | w.latch[2].mask, 0u);
  }
}

TEST(SampleTest, SkippedAndUnsampledRowsReportTheirLatch) {
  Random random;
  SampleWorld w(random, 40);
  w.latch[5] = {.mask = kPosition, .first = kPosition, .row = 2, .step = 7, .value = 8, .limit = 9};
  const std::vector<float> poison(40, NAN);
  for (const int32_t slot : {5, -1, 2}) {
    w.inputs.push_back({slot, 0, 3, kRowSample, 0, 1});
    w.meta.push_back(reference::Skipped());
    w.logits.insert(w.logits.end(), poison.begin(), poison.end());
  }
  w.meta[2] = {2, 1, 3, 4, 3, 0};  // live, but its token is not the last of its prompt
  w.Run();
  for (const RowResult& result : w.results) EXPECT_EQ(result.token, -1);
  EXPECT_EQ(std::memcmp(&w.results[0].latch, &w.latch[5], sizeof(Latch)), 0);
  EXPECT_EQ(w.results[1].latch.mask | w.results[2].latch.mask, 0u);
  EXPECT_EQ(std::count(w.next_token.begin(), w.next_token.end(), -9), kSlots);
}

// Draws over many positions follow the filtered distribution: chi-square at a false alarm of about
// 1e-6.
TEST(SampleTest, DrawsFollowTheFilteredDistribution) {
  Random random;
  SCOPED_TRACE(random.note());
  for (int variant = 0; variant < 6; ++variant) {
    SCOPED_TRACE(testing::Message() << "variant " << variant);
    SlotSampling s = {
        .temperature = 0.8f, .top_p = 1, .repetition_penalty = 1, .seed = random.Word()};
    if (variant == 1 || variant == 5) s.top_k = 12;
    if (variant == 2 || variant == 5) s.top_p = 0.8f;
    if (variant == 3 || variant == 5) s.min_p = 0.1f;
    if (variant == 4) s.temperature = 2.5f;
    const int32_t vocab = 75;
    const std::vector<float> logits = random.Normals(vocab, 1.5f);
    const std::vector<double> p =
        reference::Filtered(std::vector<double>(logits.begin(), logits.end()), s);
    constexpr int kDraws = 20000;
    std::vector<int> counts(vocab, 0);
    SampleWorld w(random, vocab);
    w.sampling[0] = s;
    w.Add(0, {1}, logits);
    for (int i = 0; i < kDraws; ++i) {
      w.logits = logits;
      w.meta[0].past = i;  // the counter of the draw; the history is not read without penalties
      w.Run();
      ++counts[static_cast<size_t>(w.results[0].token)];
    }
    double chi = 0;
    int cells = 0;
    double rare_expected = 0, rare = 0;
    for (size_t id = 0; id < p.size(); ++id) {
      if (p[id] == 0) {
        ASSERT_EQ(counts[id], 0) << "token " << id << " was filtered out";
      } else if (p[id] * kDraws < 8) {
        rare_expected += p[id] * kDraws;
        rare += counts[id];
      } else {
        chi += std::pow(counts[id] - p[id] * kDraws, 2) / (p[id] * kDraws);
        ++cells;
      }
    }
    if (rare_expected > 8) {
      chi += std::pow(rare - rare_expected, 2) / rare_expected;
      ++cells;
    }
    // Wilson-Hilferty: the cube root of chi-square / n is nearly normal.
    const double n = std::max(1, cells - 1);
    const double z = (std::cbrt(chi / n) - (1 - 2 / (9 * n))) / std::sqrt(2 / (9 * n));
    EXPECT_LT(z, 5.0) << "chi-square " << chi << " over " << cells << " cells";
  }
}

// The draw is argmax(logit / T + Gumbel) over the kept tokens, of noise keyed by seed, past and
// token alone.
TEST(SampleTest, DrawIsGumbelMaxOfTheSharedNoise) {
  Random random;
  SCOPED_TRACE(random.note());
  for (int i = 0; i < 100; ++i) {
    SampleWorld w(random, random.Int(2, 3000));
    const int32_t slot = random.Int(0, kSlots - 1);
    SlotSampling& s = w.sampling[static_cast<size_t>(slot)];
    s = {.temperature = 0.3f + static_cast<float>(random.Int(0, 20)) * 0.1f,
         .top_p = 1,
         .repetition_penalty = 1,
         .seed = random.Word()};
    if (random.Chance(0.5)) s.top_k = random.Int(1, 200);
    if (random.Chance(0.3)) s.top_p = 0.7f;
    const std::vector<float> logits = random.Normals(static_cast<size_t>(w.vocab), 3.0f);
    const size_t row = w.Add(slot, RandomHistory(random, w.vocab, random.Int(1, 30)), logits);
    w.Run();
    const std::vector<double> p = reference::Filtered(w.Row(logits, row), s);
    double best = -INFINITY, chosen = 0;
    for (int32_t id = 0; id < w.vocab; ++id) {
      const double u = TokenUniform(s.seed, w.meta[row].past, id);
      const double score = logits[static_cast<size_t>(id)] / static_cast<double>(s.temperature) -
                           std::log(-std::log(u));
      if (id == w.results[row].token) chosen = score;
      if (p[static_cast<size_t>(id)] > 0) best = std::max(best, score);
    }
    EXPECT_GT(p[static_cast<size_t>(w.results[row].token)], 0.0);
    EXPECT_NEAR(chosen, best, 1e-4);
  }
}

TEST(SampleTest, TopKKeepsTheLowestIdsOfATie) {
  Random random;
  SampleWorld w(random, 64);
  w.sampling[0] = {
      .temperature = 1, .top_p = 1, .repetition_penalty = 1, .top_k = 5, .seed = random.Word()};
  w.Add(0, {1}, std::vector<float>(64, 1.0f));
  for (int i = 0; i < 300; ++i) {
    std::fill(w.logits.begin(), w.logits.end(), 1.0f);
    w.meta[0].past = i;
    w.Run();
    ASSERT_LT(w.results[0].token, 5);
  }
}

}  // namespace
}  // namespace latchd
