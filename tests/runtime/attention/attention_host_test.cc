#include "runtime/attention/attention_host.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>

#include "kernels/api/convert.h"
#include "tests/support/reference_random.h"

namespace latchd {
namespace {

using reference::Random;

// The operator is compared with onnxruntime in tests/conformance; here: what the session adds to
// it.
class AttentionHostTest : public testing::TestWithParam<DType> {
 protected:
  AttentionHostTest() : device_(*CreateDevice(DeviceSpec(), 0)) {
    host_ = std::make_unique<AttentionHost>(
        *device_, AttentionLimits{.max_sessions = 3, .memory_bytes = 4 << 20},
        [this](AttentionHost::Task task) {
          if (draining_) return false;
          task();
          return true;
        });
  }
  static std::string DeviceSpec() {
    const char* device = std::getenv("LATCHD_TEST_DEVICE");
    return device == nullptr ? "cpu" : device;
  }

  AttentionConfig Config() const {
    AttentionConfig c = {.dtype = GetParam(),
                         .batch = 4,
                         .layers = 2,
                         .capacity_tokens = 40,
                         .num_heads = 4,
                         .kv_num_heads = 2,
                         .head_size = 32,
                         .do_rotary = true,
                         .rotary_dim = 16,
                         .rotary_rows = 64};
    for (int64_t i = 0; i < c.rotary_rows * c.rotary_dim / 2; ++i) {
      c.cos_cache.push_back(std::cos(0.1f * static_cast<float>(i)));
      c.sin_cache.push_back(std::sin(0.1f * static_cast<float>(i)));
    }
    return c;
  }
  SessionId Open(const AttentionConfig& config) {
    auto info = host_->OpenAttention(config);
    EXPECT_TRUE(info.ok()) << info.status();
    return info.ok() ? info->id : 0;
  }

  // Random q, k and v of `tokens` for each of four rows whose lengths become `totals`.
  struct Input {
    AttentionCall call;
    std::string query, key, value;
  };
  std::string Bytes(size_t count) {
    const std::vector<float> values = random_.Normals(count);
    std::string bytes(count * SizeOf(GetParam()), '\0');
    ConvertFromF32(GetParam(), values.data(), bytes.data(), count);
    return bytes;
  }
  std::unique_ptr<Input> Tokens(SessionId session, int64_t layer, int64_t tokens,
                                const std::vector<int32_t>& totals) {
    auto input = std::make_unique<Input>();
    input->query = Bytes(static_cast<size_t>(4 * tokens * 4 * 32));
    input->key = Bytes(static_cast<size_t>(4 * tokens * 2 * 32));
    input->value = Bytes(static_cast<size_t>(4 * tokens * 2 * 32));
    input->call = {.session = session,
                   .layer = layer,
                   .q_sequence = tokens,
                   .kv_sequence = tokens,
                   .query = input->query,
                   .key = input->key,
                   .value = input->value};
    for (const int32_t total : totals) input->call.seqlens_k.push_back(total - 1);
    return input;
  }
  absl::StatusOr<AttentionResult> Step(const AttentionCall& call) {
    absl::StatusOr<AttentionResult> out = absl::UnknownError("no answer");
    host_->AttentionStep(call, [&](absl::StatusOr<AttentionResult> r) { out = std::move(r); });
    return out;
  }
  absl::StatusOr<AttentionResult> Prefill(const AttentionCall& call) {
    absl::StatusOr<AttentionResult> out = absl::UnknownError("no answer");
    host_->AttentionPrefill(call, [&](absl::StatusOr<AttentionResult> r) { out = std::move(r); });
    return out;
  }
  // The same call on another session.
  static AttentionCall On(SessionId session, AttentionCall call) {
    call.session = session;
    return call;
  }
  static std::string_view Row(const std::string& output, size_t row) {
    return std::string_view(output).substr(row * output.size() / 4, output.size() / 4);
  }

  Random random_;
  bool draining_ = false;
  std::unique_ptr<Device> device_;
  std::unique_ptr<AttentionHost> host_;
};
INSTANTIATE_TEST_SUITE_P(DTypes, AttentionHostTest,
                         testing::Values(DType::kF32, DType::kF16, DType::kBF16),
                         [](const auto& info) { return std::string(Name(info.param)); });

const std::vector<int32_t> kRagged = {9, 5, 12, 7};
std::vector<int32_t> Next(std::vector<int32_t> totals, int32_t by = 1) {
  for (int32_t& total : totals) total += by;
  return totals;
}

TEST_P(AttentionHostTest, CapturedEagerAndUnfusedStepsGiveTheSameBits) {
  SCOPED_TRACE(random_.note());
  AttentionConfig unfused = Config();
  unfused.disable_prep_fusion = true;
  AttentionConfig reference = Config();
  reference.backend = AttentionBackend::kReference;
  const SessionId a = Open(Config()), b = Open(unfused), c = Open(reference);
  for (const int64_t layer : {0, 1}) {
    const auto prompt = Tokens(a, layer, 5, kRagged);
    // Rows shorter than the prompt are not there yet: past is 4, 0, 7 and 2 tokens of zeros.
    for (const SessionId id : {a, b, c}) {
      const auto result = Prefill(On(id, prompt->call));
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(result->attention_variant, id == c ? "reference" : "flash");
    }
    const auto step = Tokens(a, layer, 1, Next(kRagged));
    const auto captured = Step(On(a, step->call));
    const auto separate = Step(On(b, step->call));
    const auto eager = Prefill(On(c, step->call));
    ASSERT_TRUE(captured.ok() && separate.ok() && eager.ok());
    EXPECT_TRUE(captured->captured);
    EXPECT_FALSE(eager->captured);
    EXPECT_EQ(captured->prep_variant, "fused");
    EXPECT_EQ(separate->prep_variant, "unfused");
    EXPECT_EQ(captured->output, separate->output);
    EXPECT_EQ(captured->output, eager->output);
  }
  EXPECT_EQ(*host_->ExportAttention(a), *host_->ExportAttention(b));
  EXPECT_EQ(*host_->ExportAttention(a), *host_->ExportAttention(c));
}

// A bad row latches by name, leaves the other rows and every cache row of its own alone, and stops
// the session until ClearLatch; then it goes on as if nothing had happened. Another session never
// notices.
TEST_P(AttentionHostTest, EachInvariantIsLatchedAndRecoveredFrom) {
  SCOPED_TRACE(random_.note());
  AttentionConfig config = Config();
  config.explicit_positions = true;
  const struct {
    uint32_t mask;
    int32_t seqlens_k;
    int64_t position;
  } cases[] = {{kTotalOverflow | kPastCapacity | kPresentCapacity, INT32_MAX, 3},
               {kPastNegative | kQueryNegative, -1, 3},
               {kPresentCapacity, 40, 3},
               {kPastCapacity | kPresentCapacity, 41, 3},
               {kPosition, 12, 64},
               {kPosition, 12, -1}};
  for (const auto& bad : cases) {
    SCOPED_TRACE(testing::Message()
                 << "seqlens_k " << bad.seqlens_k << " position " << bad.position);
    const SessionId hit = Open(config), other = Open(config);
    auto prompt = Tokens(hit, 1, 5, kRagged);
    prompt->call.position_ids.assign(20, 7);
    ASSERT_TRUE(Prefill(prompt->call).ok());
    ASSERT_TRUE(Prefill(On(other, prompt->call)).ok());
    const std::string before = *host_->ExportAttention(hit);

    auto good = Tokens(hit, 1, 1, Next(kRagged));
    good->call.position_ids = {9, 5, 12, 7};
    AttentionCall broken = good->call;
    broken.seqlens_k[2] = bad.seqlens_k;
    broken.position_ids[2] = bad.position;
    const auto violated = Step(broken);
    ASSERT_TRUE(violated.ok()) << violated.status();
    ASSERT_TRUE(violated->violation.has_value());
    EXPECT_EQ(violated->violation->latch.mask, bad.mask);
    EXPECT_EQ(violated->violation->latch.layer, 1);
    EXPECT_EQ(violated->violation->latch.row, 2);
    EXPECT_EQ(violated->violation->latch.step, 1);
    EXPECT_EQ(*host_->ExportAttention(hit), before);

    const auto expected = Step(On(other, good->call));
    ASSERT_TRUE(expected.ok() && !expected->violation.has_value());
    for (const size_t row : {0, 1, 3}) {
      EXPECT_EQ(Row(violated->output, row), Row(expected->output, row)) << row;
    }
    EXPECT_EQ(Row(violated->output, 2), std::string(violated->output.size() / 4, '\0'));

    const auto refused = Step(good->call);
    ASSERT_TRUE(refused.ok() && refused->violation.has_value());
    EXPECT_EQ(refused->violation->latch.mask, bad.mask);
    EXPECT_TRUE(refused->output.empty());
    EXPECT_EQ(*host_->ExportAttention(hit), before);

    ASSERT_TRUE(host_->ClearAttentionLatch(hit).ok());
    const auto again = Step(good->call);
    ASSERT_TRUE(again.ok() && !again->violation.has_value());
    EXPECT_EQ(again->output, expected->output);
    EXPECT_EQ(*host_->ExportAttention(hit), *host_->ExportAttention(other));
    ASSERT_TRUE(host_->CloseAttention(hit).ok() && host_->CloseAttention(other).ok());
  }
}

TEST_P(AttentionHostTest, PrefillRefusesBadLengthsAndPoisonsNothing) {
  const SessionId id = Open(Config());
  const std::string before = *host_->ExportAttention(id);
  const auto refused = Prefill(Tokens(id, 0, 5, {9, 5, 4, 7})->call);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.status().message(),
            "seqlens_k[2] = 3: PAST_NEGATIVE: total is shorter than the current key sequence (4, "
            "limit 5)");
  EXPECT_EQ(*host_->ExportAttention(id), before);
  EXPECT_TRUE(Step(Tokens(id, 0, 1, kRagged)->call)->violation == std::nullopt);
}

// Attending again with no new key gives the step's own output and changes nothing.
TEST_P(AttentionHostTest, AttendOnlyAppendsNothing) {
  SCOPED_TRACE(random_.note());
  const SessionId id = Open(Config());
  ASSERT_TRUE(Prefill(Tokens(id, 0, 5, kRagged)->call).ok());
  const auto step = Tokens(id, 0, 1, Next(kRagged));
  const auto first = Step(step->call);
  const std::string before = *host_->ExportAttention(id);
  AttentionCall only = step->call;
  only.kv_sequence = 0;
  only.key = only.value = {};
  const auto second = Step(only);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->output, second->output);
  EXPECT_EQ(*host_->ExportAttention(id), before);
}

TEST_P(AttentionHostTest, ForkExportImportAndTruncate) {
  SCOPED_TRACE(random_.note());
  const SessionId id = Open(Config());
  ASSERT_TRUE(Prefill(Tokens(id, 0, 5, kRagged)->call).ok());
  ASSERT_TRUE(Prefill(Tokens(id, 1, 5, kRagged)->call).ok());
  const auto fork = host_->ForkAttention(id);
  ASSERT_TRUE(fork.ok()) << fork.status();
  const std::string file = *host_->ExportAttention(id);
  const auto step = Tokens(id, 1, 1, Next(kRagged));
  const auto own = Step(step->call);
  const auto forked = Step(On(fork->id, step->call));
  ASSERT_TRUE(own.ok() && forked.ok());
  EXPECT_EQ(own->output, forked->output);

  ASSERT_TRUE(Step(Tokens(id, 1, 1, Next(kRagged, 2))->call).ok());  // diverges
  const auto imported = host_->ImportAttention(id, file);
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->lengths, (std::vector<int64_t>{9, 5, 12, 7, 9, 5, 12, 7}));
  EXPECT_EQ(*host_->ExportAttention(id), file);
  EXPECT_EQ(Step(step->call)->output, own->output);

  const auto truncated = host_->TruncateAttention(id, 6);
  ASSERT_TRUE(truncated.ok());
  EXPECT_EQ(truncated->lengths, (std::vector<int64_t>{6, 5, 6, 6, 6, 6, 6, 6}));

  const std::string before = *host_->ExportAttention(id);
  for (size_t keep = 0; keep < file.size(); keep += file.size() / 37) {
    EXPECT_EQ(host_->ImportAttention(id, file.substr(0, keep)).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  AttentionConfig longer = Config();
  longer.capacity_tokens = 41;
  const auto mismatch = host_->ImportAttention(Open(longer), file);
  EXPECT_EQ(mismatch.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(mismatch.status().message().find("[4, 2, 41, 32]"), std::string::npos);
  EXPECT_EQ(*host_->ExportAttention(id), before);
}

TEST_P(AttentionHostTest, LimitsSayWhatIsFree) {
  AttentionConfig big = Config();
  big.capacity_tokens = 1 << 20;
  const auto refused = host_->OpenAttention(big);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(refused.status().message().find("4194304 of --attention-memory 4194304 are free"),
            std::string::npos)
      << refused.status();
  const SessionId first = Open(Config());
  Open(Config());
  Open(Config());
  EXPECT_EQ(host_->OpenAttention(Config()).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(host_->CloseAttention(first).ok());
  EXPECT_TRUE(host_->CloseAttention(first).ok()) << "closing twice";
  EXPECT_EQ(host_->GetAttention(first).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(host_->AttentionConfigOf(first).status().code(), absl::StatusCode::kNotFound);
  Open(Config());
  EXPECT_EQ(host_->ListAttention().size(), 3u);
}

TEST_P(AttentionHostTest, DrainingRefuses) {
  const SessionId id = Open(Config());
  const auto step = Tokens(id, 0, 1, {1, 1, 1, 1});
  draining_ = true;
  EXPECT_EQ(Step(step->call).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(host_->OpenAttention(Config()).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace latchd
