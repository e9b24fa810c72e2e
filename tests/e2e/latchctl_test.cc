#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/time/clock.h"
#include "tests/e2e/daemon.h"

namespace latchd::e2e {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

class LatchctlE2e : public DaemonTest {
 protected:
  // The one object that a command printed; null when it is anything else.
  static Json One(const CtlResult& result) {
    EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 1) << result.out;
    const Json json = Json::parse(result.out, nullptr, /*allow_exceptions=*/false);
    EXPECT_TRUE(json.is_object()) << "out: " << result.out << "err: " << result.err;
    return json;
  }
  static std::vector<Json> Lines(const std::string& out) {
    std::vector<Json> lines;
    std::istringstream stream(out);
    for (std::string line; std::getline(stream, line);) {
      lines.push_back(Json::parse(line, nullptr, /*allow_exceptions=*/false));
      EXPECT_TRUE(lines.back().is_object()) << line;
    }
    return lines;
  }
  static std::string Id(uint64_t session_id) { return std::to_string(session_id); }
};

TEST_F(LatchctlE2e, GenerateContract) {
  const CtlResult result = Ctl({"generate", "--prompt", "Once upon", "--max-tokens", "12",
                                "--temperature", "0", "--ignore-eos", "--json"});
  EXPECT_EQ(result.code, 0) << result.err;
  const Json json = One(result);
  ASSERT_TRUE(json.is_object());
  EXPECT_TRUE(json["text"].is_string());
  EXPECT_EQ(json["token_ids"].size(), 12u);
  EXPECT_EQ(json["finish_reason"], "length");
  EXPECT_EQ(json["usage"]["prompt_tokens"], 9);
  EXPECT_EQ(json["usage"]["generated_tokens"], 12);
  EXPECT_EQ(json["latch"]["state"], "clear");
  EXPECT_GT(json["timings"]["tokens_per_s"], 0.0);

  // The flag's place does not matter, and neither does how the prompt comes.
  const Json before =
      One(Ctl({"--json", "generate", "--prompt", "-", "-n", "12", "--ignore-eos"}, "Once upon"));
  EXPECT_EQ(before["token_ids"], json["token_ids"]);
  EXPECT_EQ(before["text"], json["text"]);
  const client::Session session = OpenWithPrompt({'O', 'n', 'c', 'e', ' ', 'u', 'p', 'o', 'n'});
  EXPECT_EQ(Json(StepTokens(session.id(), 12)), json["token_ids"]);
  // Without --json the same text comes as a stream, and nothing else on stdout.
  const CtlResult plain =
      Ctl({"generate", "--prompt", "Once upon", "-n", "12", "--ignore-eos", "--temperature", "0"});
  EXPECT_EQ(plain.code, 0);
  EXPECT_EQ(plain.out, json["text"].get<std::string>() + "\n");
  EXPECT_THAT(plain.err, HasSubstr("12 tokens"));
  EXPECT_THAT(plain.err, HasSubstr("latch clear"));
  const CtlResult ids = Ctl({"generate", "--prompt-ids", "79,110,99,101,32,117,112,111,110", "-n",
                             "12", "--ignore-eos", "--raw-ids"});
  std::string want;
  for (const Json& id : json["token_ids"]) want += id.dump() + "\n";
  EXPECT_EQ(ids.out, want);
}

TEST_F(LatchctlE2e, ExitCodesAndTheirOneLine) {
  const auto one_line = [](const CtlResult& result) {
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_EQ(result.out, "");
  };
  const CtlResult refused = Ctl({"generate", "--prompt", "x", "--temperature", "-1"});
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, HasSubstr("temperature"));
  one_line(refused);
  const CtlResult unknown = Ctl({"sessions", "show", "123456"});
  EXPECT_EQ(unknown.code, 1);
  EXPECT_THAT(unknown.err, HasSubstr("NOT_FOUND"));
  one_line(unknown);
  EXPECT_EQ(Ctl({"generate"}).code, 2);
  EXPECT_EQ(Ctl({"generate", "--prompt", "x", "--max-tokens", "many"}).code, 2);
  const CtlResult misspelt = Ctl({"no-such-command"});
  EXPECT_EQ(misspelt.code, 2);
  EXPECT_THAT(misspelt.err, HasSubstr("no command no-such-command"));
  const CtlResult bytes = Ctl({"generate", "--prompt", "caf\xe9"});
  EXPECT_EQ(bytes.code, 2);
  EXPECT_THAT(bytes.err, HasSubstr("expected UTF-8"));
  const CtlResult input = Ctl({"generate", "--prompt", "-"}, "caf\xe9");
  EXPECT_EQ(input.code, 1);
  EXPECT_THAT(input.err, HasSubstr("standard input: expected UTF-8"));
  one_line(input);
  const CtlResult nobody = Ctl({"--server", "127.0.0.1:1", "status"});
  EXPECT_EQ(nobody.code, 3);
  EXPECT_THAT(nobody.err, HasSubstr("latchd --model"));
  one_line(nobody);
  const CtlResult no_port = Ctl({"--server", "host", "status"});
  EXPECT_EQ(no_port.code, 2);
  EXPECT_EQ(no_port.err, "latchctl: --server: expected HOST:PORT or unix:PATH, got 'host'\n");
  EXPECT_EQ(Ctl({"--help"}).code, 0);
  EXPECT_THAT(Ctl({"generate", "--help"}).out, HasSubstr("Examples:"));
}

TEST_F(LatchctlE2e, WrongValuesAreNamed) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"generate", "--prompt", "x", "--temperature", "hot"},
       "--temperature: expected FLOAT, got hot"},
      {{"sessions", "show", "first"}, "id: expected UINT, got first"},
      {{"generate", "--prompt", "x", "--seed", "-1"}, "--seed: "},
      {{"generate", "--session", "-1", "--append-next"}, "--session: "},
      {{"--nope"}, "no option --nope"},
  };
  for (const auto& [arguments, message] : cases) {
    const CtlResult result = Ctl(arguments);
    EXPECT_EQ(result.code, 2) << message;
    EXPECT_THAT(result.err, HasSubstr(message));
  }
}

TEST_F(LatchctlE2e, OutputThatCannotBeWrittenIsAnError) {
  const std::string command =
      std::string(LATCHCTL_BINARY) + " --server " + daemon().address() + " status > /dev/full";
  Process shell({"/bin/sh", "-c", command}, path("full"));
  EXPECT_EQ(shell.Wait(absl::Seconds(60)), 1);
  EXPECT_EQ(shell.err(), "latchctl: standard output: cannot write: No space left on device\n");
}

TEST_F(LatchctlE2e, ViolationIsExitCode4AndClearGoesOn) {
  const client::Session session = OpenWithPrompt(RandomPrompt(5));
  v1::InjectFaultRequest fault;
  fault.set_session_id(session.id());
  fault.set_position(-1);
  ASSERT_TRUE(client().InjectFault(fault).ok());
  const CtlResult result = Ctl({"generate", "--session", Id(session.id()), "-n", "4", "--json"});
  EXPECT_EQ(result.code, 4);
  const Json json = One(result);
  EXPECT_EQ(json["finish_reason"], "violation");
  EXPECT_EQ(json["latch"]["violation"]["invariants"], Json::array({"POSITION"}));
  EXPECT_THAT(result.err, HasSubstr("sessions clear " + Id(session.id())));
  EXPECT_EQ(One(Ctl({"sessions", "show", Id(session.id()), "--json"}))["state"], "poisoned");
  EXPECT_THAT(Ctl({"sessions"}).out, HasSubstr("POSITION"));
  EXPECT_EQ(One(Ctl({"sessions", "clear", Id(session.id()), "--json"}))["latch"]["state"], "clear");
  EXPECT_EQ(Ctl({"generate", "--session", Id(session.id()), "-n", "4"}).code, 0);
}

TEST_F(LatchctlE2e, Sessions) {
  const Json opened =
      One(Ctl({"sessions", "open", "--capacity", "32", "--owner", "a\x1b[31mb", "--json"}));
  const std::string id = opened["session_id"].dump();
  EXPECT_EQ(opened["capacity_tokens"], 32);
  const CtlResult list = Ctl({"sessions", "list"});
  EXPECT_THAT(list.out, HasSubstr("a\\x1b[31mb")) << "control characters are escaped";
  EXPECT_THAT(list.out, Not(HasSubstr("\x1b")));
  EXPECT_EQ(
      Ctl({"generate", "--session", id, "--prompt", "abcdef", "-n", "3", "--ignore-eos"}).code, 0);
  EXPECT_EQ(One(Ctl({"sessions", "truncate", id, "4", "--json"}))["length_tokens"], 4);
  EXPECT_EQ(One(Ctl({"sessions", "reset", id, "--json"}))["length_tokens"], 0);
  // A session that is not there does not keep the next one open.
  const CtlResult closed = Ctl({"sessions", "close", "123456", id});
  EXPECT_EQ(closed.code, 1);
  EXPECT_THAT(closed.err, HasSubstr("123456"));
  EXPECT_EQ(closed.out, "closed " + id + "\n");
  EXPECT_EQ(One(Ctl({"sessions", "--json"}))["sessions"], Json::array());
}

TEST_F(LatchctlE2e, TokenizeAndBack) {
  const std::string text = "caf\xc3\xa9 \xf0\x9f\x98\x80";
  const Json json = One(Ctl({"tokenize", text, "--json"}));
  EXPECT_EQ(json["token_ids"].size(), text.size()) << "one token a byte";
  EXPECT_EQ(json["pieces_hex"][3], "c3");
  EXPECT_EQ(json["pieces"][3], "\xef\xbf\xbd");
  EXPECT_THAT(Ctl({"tokenize", text}).out, HasSubstr("\\xc3"));
  std::vector<std::string> arguments = {"detokenize"};
  for (const Json& id : json["token_ids"]) arguments.push_back(id.dump());
  EXPECT_EQ(Ctl(arguments).out, text + "\n");
  // Half a character still gives valid JSON.
  EXPECT_TRUE(One(Ctl({"detokenize", "240", "159", "--json"}))["text"].is_string());
}

TEST_F(LatchctlE2e, Status) {
  const Json json = One(Ctl({"status", "--json"}));
  EXPECT_EQ(json["backend"], "cpu");
  EXPECT_EQ(json["model"]["vocab"], kVocab);
  EXPECT_EQ(json["fault_injection"], true);
  ASSERT_FALSE(json["graphs"].empty());
  const CtlResult table = Ctl({"status"});
  EXPECT_EQ(table.code, 0);
  for (const char* word : {"model", "device", "memory", "hits", "misses", "replays", "signature"}) {
    EXPECT_THAT(table.out, HasSubstr(word));
  }
}

TEST_F(LatchctlE2e, StepIsScriptable) {
  const CtlResult result =
      Ctl({"step", "--prompt", "The cat", "--top", "3", "--json"},
          "\n2\n#65\n= on\nrun 2\n9\n#9999\ntrunc 8\n\n#66\nlatch\ntext\nquit\n");
  const std::vector<Json> events = Lines(result.out);
  ASSERT_EQ(events.size(), 16u) << result.out << result.err;
  EXPECT_EQ(events[0]["event"], "prefill");
  EXPECT_EQ(events[0]["length_tokens"], 7);
  EXPECT_EQ(events[1]["appended_token_id"], events[0]["next"]["token_id"]) << "Enter";
  EXPECT_EQ(events[2]["appended_token_id"], events[1]["next"]["top"][1]["token_id"]) << "2";
  EXPECT_EQ(events[3]["appended_token_id"], 65) << "#65";
  for (int i = 0; i < 3; ++i) EXPECT_EQ(events[4 + i]["appended_token_id"], " on"[i]) << "= on";
  EXPECT_EQ(events[8]["length_tokens"], 15) << "run 2";
  EXPECT_EQ(events[9]["event"], "error") << "no alternative 9";
  EXPECT_EQ(events[10]["code"], "INVALID_ARGUMENT") << "#9999 is outside the vocabulary";
  EXPECT_EQ(events[11]["length_tokens"], 8) << "trunc 8";
  EXPECT_EQ(events[12]["event"], "error") << "no next token after a truncate";
  EXPECT_EQ(events[13]["appended_token_id"], 66);
  EXPECT_EQ(events[14]["event"], "session") << "latch";
  EXPECT_EQ(events[15]["event"], "text");
  EXPECT_EQ(result.code, 1) << "a script that met errors says so";
}

TEST_F(LatchctlE2e, ChatKeepsItsCache) {
  const CtlResult once = Ctl({"chat", "--once", "Hi", "-n", "6", "--json"});
  EXPECT_EQ(once.code, 0) << once.err;
  // "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
  EXPECT_EQ(One(once)["usage"]["prompt_tokens"], 21);
  const CtlResult two =
      Ctl({"chat", "-n", "6", "--json"}, "Hi\nAnd now?\n/stats\n/reset\nHi\n/quit\nnever\n");
  EXPECT_EQ(two.code, 0) << two.err;
  const std::vector<Json> turns = Lines(two.out);
  ASSERT_EQ(turns.size(), 3u) << two.out;
  EXPECT_EQ(turns[0]["token_ids"], One(once)["token_ids"]);
  EXPECT_EQ(turns[2]["token_ids"], turns[0]["token_ids"]) << "/reset forgets";
  EXPECT_THAT(two.err, HasSubstr("reused"));
  EXPECT_TRUE(client().ListSessions()->empty()) << "a chat closes its session";
}

TEST_F(LatchctlE2e, BenchIsBoundedAndCounts) {
  for (const bool client_steps : {false, true}) {
    std::vector<std::string> arguments = {"bench", "--concurrency",   "2", "--requests",
                                          "5",     "--prompt-tokens", "8", "-n",
                                          "6",     "--json"};
    if (client_steps) arguments.push_back("--client-steps");
    const CtlResult result = Ctl(arguments);
    EXPECT_EQ(result.code, 0) << result.err;
    const Json json = One(result);
    EXPECT_EQ(json["requests"], 5);
    EXPECT_EQ(json["generated_tokens"], 30);
    EXPECT_GE(json["itl_ms"]["p99"], json["itl_ms"]["p50"]);
    EXPECT_GT(json["throughput_tokens_per_s"], 0.0);
  }
  EXPECT_TRUE(client().ListSessions()->empty());
}

TEST_F(LatchctlE2e, CtrlCCancelsCleanly) {
  const client::Session session = Open(kContextTokens);
  // A benchmark of many requests is what can be interrupted for sure.
  Process bench({LATCHCTL_BINARY, "--server", daemon().address(), "bench", "--requests", "100000",
                 "--prompt-tokens", "8", "-n", "200"},
                path("interrupted"));
  const absl::Time end = absl::Now() + absl::Seconds(10);
  while (client().ListSessions()->size() < 2 && absl::Now() < end) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  bench.Signal(SIGINT);
  EXPECT_EQ(bench.Wait(absl::Seconds(10)).value_or(-1), 130) << bench.err();
  EXPECT_EQ(client().ListSessions()->size(), 1u) << "it closed its own session only";
}

}  // namespace
}  // namespace latchd::e2e
