#include "runtime/obs/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <thread>
#include <vector>

namespace latchd {
namespace {

using ::testing::HasSubstr;

std::string Read(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Records one of everything.
void Touch(Metrics& metrics) {
  metrics.StepDone(3, 0.0002);
  metrics.QueueWait(0.00001);
  metrics.TimeToFirstToken(0.05);
  metrics.InterTokenLatency(0.001);
  metrics.PrefillDone(128, 0.02);
  metrics.TokensGenerated(7);
  metrics.GraphHit();
  metrics.GraphMiss();
  metrics.GraphCaptured(4096);
  metrics.ViolationLatched("NON_FINITE");
  metrics.RequestCancelled();
  metrics.SetSessions("idle", 2);
  metrics.SetKvTokens(10, 30);
  metrics.SetQueueDepth(4);
  metrics.RpcDone("Step", "OK", 0.5);
  metrics.SetInfo("1.2.3", "cpu", "tiny", "bf16");
  metrics.SetMemory("kv", 77);
  metrics.SetReady(true);
  metrics.SetLastGoodStep(1.5e9);
}

TEST(Metrics, RecordsArriveUnderTheirNames) {
  Metrics metrics;
  Touch(metrics);
  const std::string text = metrics.Render();
  for (const char* line : {
           "latchd_step_seconds_count 1\n",
           "latchd_step_seconds_bucket{le=\"0.0001\"} 0\n",
           "latchd_step_seconds_bucket{le=\"0.0002\"} 1\n",
           "latchd_step_rows_total 3\n",
           "latchd_queue_wait_seconds_count 1\n",
           "latchd_time_to_first_token_seconds_sum 0.05\n",
           "latchd_inter_token_latency_seconds_count 1\n",
           "latchd_prefill_chunk_seconds_count 1\n",
           "latchd_prefill_tokens_total 128\n",
           "latchd_generated_tokens_total 7\n",
           "latchd_graph_hits_total 1\n",
           "latchd_graph_misses_total 1\n",
           "latchd_graph_captures_total 1\n",
           "latchd_graph_bytes 4096\n",
           "latchd_violations_total{invariant=\"NON_FINITE\"} 1\n",
           "latchd_violations_total{invariant=\"PAGE_TABLE\"} 0\n",
           "latchd_requests_cancelled_total 1\n",
           "latchd_sessions{state=\"idle\"} 2\n",
           "latchd_kv_free_tokens 10\n",
           "latchd_kv_capacity_tokens 30\n",
           "latchd_queued_requests 4\n",
           "latchd_rpcs_total{code=\"OK\",method=\"Step\"} 1\n",
           "latchd_rpc_seconds_count{method=\"Step\"} 1\n",
           "latchd_info{backend=\"cpu\",dtype=\"bf16\",model=\"tiny\",version=\"1.2.3\"} 1\n",
           "latchd_memory_bytes{kind=\"kv\"} 77\n",
           "latchd_ready 1\n",
           "latchd_last_good_step_timestamp_seconds 1500000000\n",
       }) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(Metrics, ListAndExpositionAgree) {
  Metrics metrics;
  Touch(metrics);
  std::map<std::string, std::string> exposed;  // name -> type
  std::istringstream lines(metrics.Render());
  const std::regex type_line("# TYPE (\\S+) (\\S+)");
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (std::regex_match(line, match, type_line)) exposed[match[1]] = match[2];
  }
  const std::map<MetricType, std::string> names = {{MetricType::kCounter, "counter"},
                                                   {MetricType::kGauge, "gauge"},
                                                   {MetricType::kHistogram, "histogram"}};
  for (const MetricInfo& metric : MetricList()) {
    EXPECT_EQ(exposed[metric.name], names.at(metric.type)) << metric.name;
    // Every label that the list names, and no other.
    std::set<std::string> labels;
    std::istringstream list(metric.labels);
    for (std::string label; std::getline(list, label, ',');) labels.insert(label);
    std::set<std::string> seen;
    const std::string text = metrics.Render();
    const std::regex series("(?:^|\n)" + std::string(metric.name) +
                            "(?:_bucket|_sum|_count)?\\{([^}]*)\\}");
    for (std::sregex_iterator it(text.begin(), text.end(), series), end; it != end; ++it) {
      const std::string body = (*it)[1];
      const std::regex label("(\\w+)=\"");
      for (std::sregex_iterator l(body.begin(), body.end(), label); l != end; ++l) {
        if ((*l)[1] != "le") seen.insert((*l)[1]);
      }
    }
    EXPECT_EQ(seen, labels) << metric.name;
  }
  EXPECT_EQ(exposed.size(), MetricList().size());
}

TEST(Metrics, NamesFollowTheRules) {
  std::set<std::string> names;
  for (const MetricInfo& metric : MetricList()) {
    const std::string name = metric.name;
    EXPECT_TRUE(names.insert(name).second) << name << " twice";
    EXPECT_TRUE(std::regex_match(name, std::regex("latchd_[a-z][a-z0-9_]*[a-z0-9]"))) << name;
    const auto ends = [&](const std::string& suffix) {
      return name.size() > suffix.size() && name.substr(name.size() - suffix.size()) == suffix;
    };
    EXPECT_EQ(ends("_total"), metric.type == MetricType::kCounter) << name;
    if (metric.type == MetricType::kHistogram) {
      EXPECT_TRUE(ends("_seconds") || ends("_bytes")) << name << " needs a base unit";
    }
    for (const char* bad : {"_ms", "_us", "_ns", "_kb", "_mb", "_percent", "_per_", "_rate",
                            "_milliseconds", "_microseconds", "_count", "_sum", "_bucket"}) {
      EXPECT_EQ((name + "_").find(std::string(bad) + "_"), std::string::npos)
          << name << ": base units, no rates, no reserved suffixes";
    }
    const std::string help = metric.help;
    EXPECT_GT(help.size(), 10u) << name;
    EXPECT_NE(help.back(), '.') << name;
    EXPECT_THAT(MetricListText(), HasSubstr(name));
  }
}

TEST(Metrics, DashboardsAndAlertsUseListedNamesOnly) {
  std::set<std::string> known;
  for (const MetricInfo& metric : MetricList()) {
    known.insert(metric.name);
    if (metric.type != MetricType::kHistogram) continue;
    for (const char* suffix : {"_bucket", "_sum", "_count"}) {
      known.insert(std::string(metric.name) + suffix);
    }
  }
  size_t uses = 0;
  const std::filesystem::path deploy = std::filesystem::path(LATCHD_SOURCE_DIR) / "deploy";
  for (const auto& entry : std::filesystem::directory_iterator(deploy)) {
    const std::string extension = entry.path().extension();
    if (extension != ".json" && extension != ".yml" && extension != ".md") continue;
    const std::string text = Read(entry.path());
    const std::regex name("\\blatchd_[a-z0-9_]+");
    for (std::sregex_iterator it(text.begin(), text.end(), name), end; it != end; ++it, ++uses) {
      EXPECT_TRUE(known.count(it->str())) << entry.path() << " uses " << it->str();
    }
  }
  EXPECT_GT(uses, 20u) << "the files were not found";
}

TEST(Metrics, RecordingFromManyThreadsLosesNothing) {
  Metrics metrics;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&metrics, t] {
      for (int i = 0; i < 2000; ++i) {
        metrics.StepDone(1, 0.001);
        metrics.TokensGenerated(1);
        metrics.RpcDone(t % 2 ? "Step" : "Generate", "OK", 0.01);
        if (i % 500 == 0) metrics.Render();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string text = metrics.Render();
  EXPECT_THAT(text, HasSubstr("latchd_step_seconds_count 16000\n"));
  EXPECT_THAT(text, HasSubstr("latchd_generated_tokens_total 16000\n"));
  EXPECT_THAT(text, HasSubstr("latchd_rpcs_total{code=\"OK\",method=\"Step\"} 8000\n"));
}

}  // namespace
}  // namespace latchd
