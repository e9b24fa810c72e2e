#include "tests/kernels/cuda/cuda_fixture.h"

namespace latchd {
namespace {

using reference::Random;

// Rows of one sample op with their tables, on the host; Mirrored() puts them on the device.
struct SampleData {
  static constexpr int32_t kShift = 3, kPageTokens = 8, kMaxPages = 12;
  int32_t rows, vocab;
  std::vector<RowMeta> meta;
  std::vector<StepRow> inputs;
  std::vector<StepInputsHeader> header = {{77, 0}};
  std::vector<float> logits;
  std::vector<Latch> latch;
  std::vector<int32_t> next_token, page_table, history;
  std::vector<SlotSampling> sampling;
  std::vector<LogitBias> bias;
  std::vector<RowResult> results;
  std::vector<int32_t> workspace;

  SampleData(Random& random, int32_t rows_in, int32_t vocab_in) : rows(rows_in), vocab(vocab_in) {
    const size_t count = static_cast<size_t>(rows);
    logits = random.Normals(count * static_cast<size_t>(vocab), 3.0f);
    latch.resize(count);
    next_token.assign(count, -7);
    for (int32_t p = 0; p < rows * kMaxPages; ++p) page_table.push_back(p);
    random.Shuffle(page_table);
    history.assign(count * kMaxPages * kPageTokens, -1);
    bias.resize(count * kMaxLogitBias);
    results.resize(count);
    for (int32_t r = 0; r < rows; ++r) {
      const int32_t total = random.Int(1, kMaxPages * kPageTokens);
      meta.push_back({r, 0, total - 1, total, total - 1, kRowSample});
      inputs.push_back({r, 0, total - 1, kRowSample, 0, 100 + r});
      SlotSampling s = {};
      s.top_p = s.repetition_penalty = 1.0f;
      s.seed = random.Word();
      sampling.push_back(s);
      for (int32_t t = 0; t < total; ++t) {
        const int32_t token = random.Int(0, std::min(vocab - 1, 20));
        *HostTables().History(r, t) = token | (random.Chance(0.5) ? kPromptBit : 0);
      }
    }
  }
  SlotTables HostTables() {
    return {latch.data(),    next_token.data(), nullptr,        page_table.data(),
            sampling.data(), bias.data(),       history.data(), rows,
            kMaxPages,       rows * kMaxPages,  kShift,         kPageTokens};
  }
  SampleOp HostOp() {
    return {meta.data(), inputs.data(),  header.data(), logits.data(), vocab, HostTables(),
            9,           results.data(), rows,          nullptr,       0};
  }
  void RunCpu() {
    SampleOp op = HostOp();
    workspace.assign(CpuOps().workspace_bytes(OpCall{op}) / sizeof(int32_t), 0);
    op.workspace = workspace.data();
    op.workspace_bytes = workspace.size() * sizeof(int32_t);
    const OpStatus s = CpuOps().sample(op, nullptr);
    ASSERT_TRUE(s.ok()) << s.message();
  }
};

class CudaSample : public CudaTest {
 protected:
  SampleOp DeviceOp(SampleData& d) {
    SampleOp op = d.HostOp();
    op.meta = Mirror(d.meta);
    op.inputs = Mirror(d.inputs);
    op.header = Mirror(d.header);
    op.logits = Mirror(d.logits);
    op.tables.latch = Mirror(d.latch);
    op.tables.next_token = Mirror(d.next_token);
    op.tables.page_table = Mirror(d.page_table);
    op.tables.sampling = Mirror(d.sampling);
    op.tables.bias = Mirror(d.bias);
    op.tables.history = Mirror(d.history);
    op.results = static_cast<RowResult*>(
        Raw(d.results.size() * sizeof(RowResult), MemoryKind::kHostVisible));
    GiveWorkspace(op, /*zero=*/true);
    return op;
  }
  // Runs both and compares every row's record, latch and next token.
  void Check(SampleData& d) {
    const SampleOp op = DeviceOp(d);
    RunEager(op);
    d.RunCpu();
    const std::vector<int32_t> next = Get<int32_t>(op.tables.next_token, d.next_token.size());
    EXPECT_EQ(next, d.next_token);
    for (int32_t r = 0; r < d.rows; ++r) {
      SCOPED_TRACE(testing::Message() << "row " << r);
      const RowResult& got = op.results[r];  // host-visible
      const RowResult& expected = d.results[static_cast<size_t>(r)];
      EXPECT_EQ(got.sequence, expected.sequence);
      EXPECT_EQ(got.token, expected.token);
      EXPECT_NEAR(got.logprob, expected.logprob, 1e-4);
      EXPECT_EQ(std::memcmp(&got.latch, &expected.latch, sizeof(Latch)), 0)
          << got.latch.mask << " " << got.latch.value << " / " << expected.latch.mask << " "
          << expected.latch.value;
      ASSERT_EQ(got.top_count, expected.top_count);
      for (int32_t i = 0; i < got.top_count; ++i) {
        EXPECT_EQ(got.top_token[i], expected.top_token[i]) << i;
        EXPECT_NEAR(got.top_logprob[i], expected.top_logprob[i], 1e-4) << i;
      }
    }
    const std::vector<int32_t> left =
        Get<int32_t>(op.workspace, op.workspace_bytes / sizeof(int32_t));
    EXPECT_EQ(std::count(left.begin(), left.end(), 0), static_cast<long>(left.size()))
        << "workspace not clean";
  }
};

TEST_F(CudaSample, GreedyTopLogprobsAndSkippedRows) {
  Random random;
  SCOPED_TRACE(random.note());
  for (int32_t vocab : {3, 1000, 32007, 128256}) {
    SampleData d(random, 5, vocab);
    for (size_t r = 0; r < 5; ++r) d.sampling[r].top_logprobs = static_cast<int32_t>(r) * 5;
    d.meta[1] = reference::Skipped();
    d.latch[1] = {kPastCapacity, kPastCapacity, -1, 0, 4, 9, 8};
    d.meta[2].flags = 0;           // live, but not sampled
    d.inputs[3].slot = kInactive;  // an unused row
    d.meta[3] = reference::Skipped();
    std::fill_n(d.logits.begin() + vocab, vocab, NAN);  // of a skipped row
    d.logits[static_cast<size_t>(4 * vocab) + 1] = d.logits[static_cast<size_t>(4 * vocab) + 2] =
        50.0f;  // a tie
    Check(d);
    EXPECT_EQ(d.results[4].token, 1);
    EXPECT_EQ(d.results[1].token, -1);
  }
}

TEST_F(CudaSample, FiltersAndPenaltiesEqualCpu) {
  Random random;
  SCOPED_TRACE(random.note());
  for (int round = 0; round < 24; ++round) {
    SampleData d(random, 6, round % 3 == 0 ? 32007 : 500);
    for (size_t r = 0; r < 6; ++r) {
      SlotSampling& s = d.sampling[r];
      s.temperature =
          random.Chance(0.2) ? 0.0f : 0.3f + 0.1f * static_cast<float>(random.Int(0, 15));
      if (random.Chance(0.5)) s.top_k = random.Int(1, 60);
      if (random.Chance(0.5)) s.top_p = 0.05f * static_cast<float>(random.Int(1, 19));
      if (random.Chance(0.3)) s.min_p = 0.02f * static_cast<float>(random.Int(1, 20));
      if (random.Chance(0.5)) s.repetition_penalty = 1.3f;
      if (random.Chance(0.5)) s.presence_penalty = 0.7f;
      if (random.Chance(0.5)) s.frequency_penalty = 0.2f;
      s.bias_count = random.Chance(0.5) ? random.Int(1, 40) : 0;
      for (int32_t i = 0; i < s.bias_count; ++i) {  // duplicates are likely
        d.bias[r * kMaxLogitBias + static_cast<size_t>(i)] = {random.Int(0, 30),
                                                              random.Normal(4.0f)};
      }
      s.top_logprobs = random.Int(0, 4);
    }
    Check(d);
  }
}

// Many equal logits: ties must be cut by id, exactly.
TEST_F(CudaSample, TiesAreCutByTheLowestId) {
  Random random;
  SCOPED_TRACE(random.note());
  for (int round = 0; round < 8; ++round) {
    SampleData d(random, 4, 9001);
    for (float& v : d.logits) v = static_cast<float>(random.Int(0, 3));
    for (SlotSampling& s : d.sampling) {
      s.temperature = 1.0f;
      s.top_k = random.Int(1, 40);
      s.top_logprobs = 5;
    }
    Check(d);
  }
}

TEST_F(CudaSample, NonFiniteLogitLatches) {
  Random random;
  SCOPED_TRACE(random.note());
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    SampleData d(random, 3, 5000);
    d.logits[5000 + 4321] = bad;
    d.logits[5000 + 4900] = bad;
    Check(d);
    EXPECT_EQ(d.results[1].latch.mask, kNonFinite);
    EXPECT_EQ(d.results[1].latch.value, 4321);
    EXPECT_EQ(d.results[1].token, -1);
    EXPECT_EQ(d.results[0].latch.mask, 0u);
  }
}

TEST_F(CudaSample, CapturedEqualsEager) {
  Random random;
  SCOPED_TRACE(random.note());
  SampleData d(random, 3, 32007);
  for (SlotSampling& s : d.sampling) s.temperature = 0.9f, s.top_k = 40, s.top_p = 0.9f;
  const SampleOp op = DeviceOp(d);
  RunEager(op);
  const std::vector<RowResult> eager(op.results, op.results + 3);
  std::memset(op.results, 0, 3 * sizeof(RowResult));
  RunCaptured(op);
  for (size_t r = 0; r < 3; ++r) {
    EXPECT_EQ(op.results[r].token, eager[r].token);
    EXPECT_EQ(op.results[r].logprob, eager[r].logprob);
    EXPECT_EQ(op.results[r].sequence, 77);
  }
}

}  // namespace
}  // namespace latchd
