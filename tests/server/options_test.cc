#include "server/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "absl/strings/str_cat.h"

namespace latchd {
namespace {

using ::testing::HasSubstr;

class OptionsTest : public ::testing::Test {
 protected:
  absl::StatusOr<Invocation> Parse(const std::vector<std::string>& arguments) {
    return ParseOptions(arguments, [this](const std::string& name) -> std::optional<std::string> {
      const auto it = environment_.find(name);
      if (it == environment_.end()) return std::nullopt;
      return it->second;
    });
  }
  std::string ErrorOf(const std::vector<std::string>& arguments) {
    auto parsed = Parse(arguments);
    EXPECT_FALSE(parsed.ok());
    return parsed.ok() ? "" : std::string(parsed.status().message());
  }
  std::string ConfigFile(const std::string& text) {
    const std::string path =
        absl::StrCat(::testing::TempDir(), "/latchd_options_", getpid(), "_", ++files_, ".toml");
    std::ofstream(path) << text;
    paths_.push_back(path);
    return path;
  }
  ~OptionsTest() override {
    for (const std::string& path : paths_) std::remove(path.c_str());
  }

  std::map<std::string, std::string> environment_;
  std::vector<std::string> paths_;
  int files_ = 0;
};

TEST_F(OptionsTest, DefaultsAreThoseOfTheStruct) {
  const auto parsed = Parse({"--model", "m"});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->action, Invocation::Action::kServe);
  EXPECT_EQ(parsed->options.engine.model_path, "m");
  EXPECT_EQ(parsed->options.listen, "127.0.0.1:7878");
  EXPECT_EQ(parsed->options.engine.default_ttl, absl::Minutes(10));
  EXPECT_FALSE(parsed->options.engine.fault_injection);
}

TEST_F(OptionsTest, AFlagWinsOverAVariableAndThatOverTheFile) {
  const std::string path =
      ConfigFile("model = \"file\"\nmax-rows = 2\nmax-queue = 3\nlog-format = \"json\"\n");
  environment_ = {{"LATCHD_CONFIG", path},
                  {"LATCHD_MODEL", "environment"},
                  {"LATCHD_MAX_ROWS", "4"},
                  {"LATCHD_SERVICE_HOST", "10.0.0.1"}};  // Kubernetes sets such: not ours
  const auto parsed = Parse({"--model=flag"});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->options.engine.model_path, "flag");
  EXPECT_EQ(parsed->options.engine.max_rows, 4);
  EXPECT_EQ(parsed->options.engine.max_queue, 3);
  EXPECT_EQ(parsed->options.log_format, "json");
  EXPECT_EQ(parsed->config_path, path);
}

TEST_F(OptionsTest, EveryFlagWorksFromEverySource) {
  for (const Flag& flag : FlagTable()) {
    const std::string value = flag.example;
    // The pair that must come together.
    const bool tls = std::string(flag.name).rfind("tls-", 0) == 0;
    std::vector<std::string> base =
        tls ? std::vector<std::string>{"--tls-cert=c", "--tls-key=k"} : std::vector<std::string>{};
    if (std::string(flag.name) != "model") base.push_back("--model=m");
    const auto get = [&](const absl::StatusOr<Invocation>& parsed) -> std::string {
      if (!parsed.ok()) return absl::StrCat("error: ", std::string(parsed.status().message()));
      Options options = parsed->options;
      return std::visit(
          [&](auto field) -> std::string {
            auto& got = field(options);
            using T = std::decay_t<decltype(got)>;
            if constexpr (std::is_same_v<T, absl::Duration>)
              return absl::FormatDuration(got);
            else if constexpr (std::is_same_v<T, bool>)
              return got ? "true" : "false";
            else
              return absl::StrCat(got);
          },
          flag.field);
    };
    if (!tls) {
      auto with_flag = base;
      with_flag.push_back(absl::StrCat("--", flag.name, "=", value));
      EXPECT_EQ(get(Parse(with_flag)), value) << flag.name;
    }
    environment_ = {{EnvironmentName(flag), value}};
    EXPECT_EQ(get(Parse(base)), tls ? (flag.name == std::string("tls-cert") ? "c" : "k") : value)
        << EnvironmentName(flag);
    environment_.clear();
    base.push_back("--config=" + ConfigFile(absl::StrCat(flag.name, " = \"", value, "\"\n")));
    EXPECT_EQ(get(Parse(base)), tls ? (flag.name == std::string("tls-cert") ? "c" : "k") : value)
        << flag.name << " in a file";
  }
}

TEST_F(OptionsTest, ABadValueNamesFlagExpectedGotAndSource) {
  EXPECT_EQ(ErrorOf({"--model=m", "--max-rows=lots"}),
            "--max-rows: expected an integer from 1 to 128, got 'lots'");
  environment_ = {{"LATCHD_DTYPE", "f64"}};
  EXPECT_EQ(ErrorOf({"--model=m"}), "LATCHD_DTYPE: expected auto, f32, f16 or bf16, got 'f64'");
  environment_.clear();
  const std::string path = ConfigFile("drain-timeout = \"soon\"\n");
  EXPECT_EQ(ErrorOf({"--model=m", "--config", path}),
            path +
                ": drain-timeout: expected a duration such as 500ms, 30s or 10m, from 0 to 24h, "
                "got 'soon'");
}

TEST_F(OptionsTest, RefusesWhatItDoesNotKnow) {
  EXPECT_THAT(ErrorOf({"--modell=m"}), HasSubstr("--modell=m: no such flag"));
  EXPECT_THAT(ErrorOf({"m.gguf"}), HasSubstr("m.gguf"));
  EXPECT_THAT(ErrorOf({"--model"}), HasSubstr("--model"));
  EXPECT_THAT(ErrorOf({}), HasSubstr("--model: expected the path"));
  EXPECT_THAT(ErrorOf({"--model=m", "--config=/nonexistent/latchd.toml"}),
              HasSubstr("/nonexistent/latchd.toml"));
  EXPECT_EQ(ErrorOf({"--model=m", "--config=/"}), "--config: cannot read '/': Is a directory");
  EXPECT_THAT(ErrorOf({"--model=m", "--config=" + ConfigFile("max_rows = 3\n")}),
              HasSubstr("max_rows: no such key"));
  EXPECT_THAT(ErrorOf({"--model=m", "--config=" + ConfigFile("[server]\nmax-rows = 3\n")}),
              HasSubstr("no such key"));
  EXPECT_THAT(ErrorOf({"--model=m", "--tls-cert=c"}), HasSubstr("both or neither"));
}

TEST_F(OptionsTest, ReportsEveryBound) {
  for (const Flag& flag : FlagTable()) {
    const bool integer = std::holds_alternative<int64_t& (*)(Options&)>(flag.field) ||
                         std::holds_alternative<int& (*)(Options&)>(flag.field);
    if (!integer) continue;
    const auto with = [&](const std::string& value) {
      return Parse({"--model=m", absl::StrCat("--", flag.name, "=", value)}).ok();
    };
    EXPECT_TRUE(with(absl::StrCat(flag.minimum))) << flag.name;
    EXPECT_TRUE(with(absl::StrCat(flag.maximum))) << flag.name;
    EXPECT_FALSE(with(absl::StrCat(flag.minimum - 1))) << flag.name;
    EXPECT_FALSE(with(absl::StrCat(flag.maximum + 1))) << flag.name;
    EXPECT_FALSE(with("99999999999999999999")) << flag.name;
    EXPECT_FALSE(with("")) << flag.name;
    EXPECT_FALSE(with("1.5")) << flag.name;
  }
}

TEST_F(OptionsTest, AddressesAndDevices) {
  for (const char* good : {"127.0.0.1:0", "[::1]:7878", "localhost:65535", "unix:/run/l.sock"}) {
    EXPECT_TRUE(Parse({"--model=m", absl::StrCat("--listen=", good)}).ok()) << good;
  }
  for (const char* bad :
       {"", ":7878", "127.0.0.1", "::1:7878", "h:65536", "h:-1", "h:x", "unix:", "h:", "[]:1"}) {
    EXPECT_FALSE(Parse({"--model=m", absl::StrCat("--listen=", bad)}).ok()) << bad;
  }
  EXPECT_TRUE(Parse({"--model=m", "--http="}).ok()) << "empty turns HTTP off";
  EXPECT_FALSE(Parse({"--model=m", "--http=unix:/x"}).ok());
  for (const char* good : {"auto", "cpu", "cuda", "cuda:0", "cuda:15"}) {
    EXPECT_TRUE(Parse({"--model=m", absl::StrCat("--device=", good)}).ok()) << good;
  }
  for (const char* bad : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cpu:0"}) {
    EXPECT_FALSE(Parse({"--model=m", absl::StrCat("--device=", bad)}).ok()) << bad;
  }
}

TEST_F(OptionsTest, ABoolStandsAloneOrHasAValue) {
  EXPECT_TRUE(Parse({"--model=m", "--enable-fault-injection"})->options.engine.fault_injection);
  EXPECT_FALSE(
      Parse({"--model=m", "--enable-fault-injection=false"})->options.engine.fault_injection);
  EXPECT_THAT(ErrorOf({"--model=m", "--enable-fault-injection=maybe"}),
              HasSubstr("enable-fault-injection"));
}

TEST_F(OptionsTest, PrintingNeedsNoModel) {
  using Action = Invocation::Action;
  EXPECT_EQ(Parse({"--help"})->action, Action::kHelp);
  EXPECT_EQ(Parse({"-h"})->action, Action::kHelp);
  EXPECT_EQ(Parse({"--version"})->action, Action::kVersion);
  EXPECT_EQ(Parse({"--print-config"})->action, Action::kPrintConfig);
  EXPECT_EQ(Parse({"--print-flags-markdown"})->action, Action::kPrintFlagsMarkdown);
  EXPECT_EQ(Parse({"--print-metrics"})->action, Action::kPrintMetrics);
}

TEST_F(OptionsTest, HelpAndExampleConfigHoldEveryFlagAndTheExampleParses) {
  std::set<std::string> names;
  for (const Flag& flag : FlagTable()) {
    EXPECT_TRUE(names.insert(flag.name).second) << flag.name << " twice";
    EXPECT_THAT(HelpText(), HasSubstr(absl::StrCat("--", flag.name, " ")));
    EXPECT_THAT(FlagsMarkdown(), HasSubstr(absl::StrCat("`--", flag.name, " ")));
    EXPECT_THAT(ExampleConfig(),
                HasSubstr(absl::StrCat("\n", flag.name == std::string("model") ? "" : "#",
                                       flag.name, " = ")));
  }
  const auto parsed = Parse({"--config=" + ConfigFile(ExampleConfig())});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  // With every key uncommented it still parses, and means the defaults.
  std::string all;
  std::istringstream lines(ExampleConfig());
  for (std::string line; std::getline(lines, line);) {
    const bool key = line.size() > 1 && line[0] == '#' && line[1] != ' ';
    absl::StrAppend(&all, key ? line.substr(1) : line, "\n");
  }
  const auto full = Parse({"--config=" + ConfigFile(all)});
  ASSERT_TRUE(full.ok()) << full.status() << all;
  Options got = full->options, defaults;
  EXPECT_EQ(got.listen, defaults.listen);
  EXPECT_EQ(got.tls_cert, "");
  EXPECT_EQ(got.drain_timeout, defaults.drain_timeout);
  EXPECT_EQ(got.max_message_bytes, defaults.max_message_bytes);
  for (const std::string& line : {HelpText()}) {
    std::istringstream rows(line);
    for (std::string row; std::getline(rows, row);) EXPECT_LE(row.size(), 100u) << row;
  }
}

TEST_F(OptionsTest, TheDeployedFilesAreGeneratedFromTheTable) {
  const auto read = [](const std::string& path) {
    std::ifstream file(LATCHD_SOURCE_DIR "/" + path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  };
  EXPECT_EQ(read("deploy/latchd.toml"), ExampleConfig())
      << "run: latchd --print-config > deploy/latchd.toml";
  EXPECT_THAT(read("deploy/FLAGS.md"), HasSubstr(FlagsMarkdown()))
      << "run: latchd --print-flags-markdown, and put the table into deploy/FLAGS.md";
}

}  // namespace
}  // namespace latchd
