#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/command.h"
#include "client/cli/format.h"
#include "client/cli/json.h"

namespace latchd::cli {
namespace {

struct Options {
  uint64_t id = 0;
  std::vector<uint64_t> ids;
  int64_t length = 0;
  int64_t capacity = 0;
  int64_t ttl_s = 0;
  std::string owner;
};

std::string Latch(const v1::Session& session) {
  if (!session.has_violation()) return "clear";
  return absl::StrJoin(client::InvariantNames(session.violation()), "|");
}

int List(Context& context) {
  const auto sessions = context.client.ListSessions();
  if (!sessions.ok()) return ReportError(sessions.status());
  if (context.json) {
    Json array = Json::array();
    for (const v1::Session& session : *sessions) array.push_back(ToJson(session));
    PrintJson({{"sessions", array}});
    return kOk;
  }
  if (sessions->empty()) {
    std::puts("no open sessions");
    return kOk;
  }
  Table table({"id", "state", "length", "capacity", "steps", "latch", "last used", "owner"});
  for (const v1::Session& session : *sessions) {
    table.AddRow({std::to_string(session.session_id()), StateName(session.state()),
                  FormatCount(session.length_tokens()), FormatCount(session.capacity_tokens()),
                  FormatCount(session.steps()), Latch(session),
                  FormatUnixMillis(session.last_used_unix_ms()), EscapeControl(session.owner())});
  }
  std::fputs(table.ToString().c_str(), stdout);
  return kOk;
}

int Show(Context& context, const absl::StatusOr<v1::Session>& session) {
  if (!session.ok()) return ReportError(session.status());
  if (context.json) {
    PrintJson(ToJson(*session));
    return kOk;
  }
  std::printf("session    %llu (%s)\n", static_cast<unsigned long long>(session->session_id()),
              StateName(session->state()).c_str());
  std::printf(
      "length     %s of %s tokens, %s steps\n", FormatCount(session->length_tokens()).c_str(),
      FormatCount(session->capacity_tokens()).c_str(), FormatCount(session->steps()).c_str());
  std::printf("next token %s\n", session->has_next_token_id()
                                     ? std::to_string(session->next_token_id()).c_str()
                                     : "none");
  std::printf("latch      %s\n", Latch(*session).c_str());
  if (session->has_violation()) {
    std::printf("           %s\n", EscapeControl(session->violation().message()).c_str());
  }
  std::printf("ttl        %s idle\n",
              absl::FormatDuration(absl::Milliseconds(session->ttl_ms())).c_str());
  std::printf("created    %s\n", FormatUnixMillis(session->created_unix_ms()).c_str());
  std::printf("last used  %s\n", FormatUnixMillis(session->last_used_unix_ms()).c_str());
  if (!session->owner().empty()) {
    std::printf("owner      %s\n", EscapeControl(session->owner()).c_str());
  }
  return kOk;
}

int Open(const Options& options, Context& context) {
  v1::OpenSessionRequest request;
  request.set_capacity_tokens(options.capacity);
  request.set_ttl_ms(options.ttl_s * 1000);
  request.set_owner(options.owner);
  auto session = context.client.OpenSession(request);
  if (!session.ok()) return ReportError(session.status());
  return Show(context, context.client.GetSession(session->Release()));
}

int Close(const Options& options, Context& context) {
  // All of them are tried: one that is gone does not leave the others open.
  int code = kOk;
  std::vector<uint64_t> closed;
  for (const uint64_t id : options.ids) {
    if (absl::Status status = context.client.CloseSession(id); !status.ok()) {
      code = ReportError(status);
      if (code != kServerError) return code;
      continue;
    }
    closed.push_back(id);
    if (!context.json) std::printf("closed %llu\n", static_cast<unsigned long long>(id));
  }
  if (context.json) PrintJson({{"closed", closed}});
  return code;
}

}  // namespace

void AddSessions(CLI::App& app, Command& selected) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("sessions", "List and manage sessions");
  command->require_subcommand(0, 1);
  command->footer(
      "Examples:\n"
      "  latchctl sessions                   list them\n"
      "  latchctl sessions show 12\n"
      "  latchctl sessions clear 12          clear the latch, go on from the last good length\n"
      "  latchctl sessions truncate 12 100   keep the first 100 tokens");
  command->callback([command, &selected] {
    if (command->get_subcommands().empty()) selected = List;
  });
  command->add_subcommand("list", "List open sessions")->callback([&selected] { selected = List; });

  // A subcommand that works on one session and shows it afterwards.
  using Call = absl::StatusOr<v1::Session> (*)(client::Client&, const Options&);
  const auto add = [&](const char* name, const char* help, Call call) {
    CLI::App* sub = command->add_subcommand(name, help);
    sub->add_option("id", options->id, "Session id")->required();
    sub->callback([options, call, &selected] {
      selected = [options, call](Context& context) {
        return Show(context, call(context.client, *options));
      };
    });
    return sub;
  };
  add("show", "Show one session",
      [](client::Client& client, const Options& o) { return client.GetSession(o.id); });
  add("clear", "Clear the latch",
      [](client::Client& client, const Options& o) { return client.ClearLatch(o.id); });
  add("reset", "Empty it and clear the latch",
      [](client::Client& client, const Options& o) { return client.Reset(o.id); });
  add("truncate", "Shorten it and clear the latch",
      [](client::Client& client, const Options& o) { return client.Truncate(o.id, o.length); })
      ->add_option("length", options->length, "Tokens to keep")
      ->required();

  CLI::App* open = command->add_subcommand("open", "Open a session and print it");
  open->add_option("--capacity", options->capacity, "Tokens; 0: the longest the daemon allows");
  open->add_option("--ttl", options->ttl_s, "Idle seconds until it is closed; 0: the default");
  open->add_option("--owner", options->owner, "Label shown in the list");
  open->callback([options, &selected] {
    selected = [options](Context& context) { return Open(*options, context); };
  });
  CLI::App* close = command->add_subcommand("close", "Close sessions");
  close->add_option("ids", options->ids, "Session ids")->required();
  close->callback([options, &selected] {
    selected = [options](Context& context) { return Close(*options, context); };
  });
}

}  // namespace latchd::cli
