#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/cli/chat_history.h"
#include "client/cli/command.h"
#include "client/cli/format.h"
#include "client/cli/generation.h"
#include "client/cli/json.h"
#include "client/cli/line_reader.h"
#include "client/cli/sampling_flags.h"

namespace latchd::cli {
namespace {

struct Options {
  std::string system;
  std::optional<std::string> once;
  int32_t max_tokens = 512;
  int64_t capacity = 0;
  SamplingFlags sampling;
};

// One conversation in one session: each turn prefills only what the KV cache does not hold yet.
class Chat {
 public:
  Chat(const Options& options, Context& context) : options_(options), context_(context) {
    SetSystem(options.system);
  }

  absl::Status Open() {
    v1::OpenSessionRequest request;
    request.set_capacity_tokens(options_.capacity);
    request.set_owner("latchctl chat");
    *request.mutable_sampling() = options_.sampling.ToProto();
    auto session = context_.client.OpenSession(request);
    if (!session.ok()) return session.status();
    session_ = *std::move(session);
    return absl::OkStatus();
  }

  // Forgets the conversation, keeps the system message.
  absl::Status Reset() {
    SetSystem(system_);
    known_.clear();
    return session_.Reset().status();
  }

  absl::Status ChangeSystem(const std::string& text) {
    system_ = text;
    return Reset();
  }

  // One user message and its answer, printed as it comes.
  absl::StatusOr<Generation> Turn(const std::string& text) {
    AddMessage("user", text);
    Generation partial;
    auto generation = Answer(partial);
    // A cancelled answer keeps the words that came, as the reader saw them; a failed turn never
    // happened.
    if (generation.ok() || !partial.text.empty()) {
      AddMessage("assistant", partial.text);
    } else {
      messages_.pop_back();
    }
    return generation;
  }

  uint64_t session_id() const { return session_.id(); }

  std::string Stats() const {
    return absl::StrFormat(
        "session %d: %d turns, %s tokens in the KV cache; prefilled %s, reused %s", session_.id(),
        turns_, FormatCount(length_), FormatCount(prefilled_), FormatCount(reused_));
  }

 private:
  void SetSystem(const std::string& text) {
    system_ = text;
    messages_.clear();
    if (!system_.empty()) AddMessage("system", system_);
  }

  void AddMessage(const std::string& role, const std::string& content) {
    v1::ChatMessage message;
    message.set_role(role);
    message.set_content(content);
    messages_.push_back(message);
  }

  absl::StatusOr<Generation> Answer(Generation& partial) {
    const auto rendered = context_.client.ApplyChatTemplate(messages_);
    if (!rendered.ok()) return rendered.status();
    const std::vector<int32_t> wanted(rendered->token_ids().begin(), rendered->token_ids().end());
    if (wanted.empty()) return absl::InternalError("the chat template rendered no tokens");
    const auto before = session_.Get();
    if (!before.ok()) return before.status();
    SyncKnown(*before);
    const ChatDelta delta = PlanChatTurn(wanted, known_, length_);
    if (delta.truncate_to.has_value()) {
      if (auto cut = session_.Truncate(*delta.truncate_to); !cut.ok()) return cut.status();
    }
    known_ = wanted;

    v1::GenerateRequest request;
    request.set_session_id(session_.id());
    request.mutable_tokens()->mutable_ids()->Add(delta.tokens.begin(), delta.tokens.end());
    request.set_append_next_token(delta.append_next_token);
    request.set_max_tokens(options_.max_tokens);
    auto generation =
        RunGeneration(context_, request, context_.json ? Echo::kNone : Echo::kText, &partial);
    for (const v1::NextToken& token : partial.tokens) known_.push_back(token.token_id());
    ++turns_;
    prefilled_ += delta.tokens.size();
    reused_ += wanted.size() - delta.tokens.size();
    if (const auto after = session_.Get(); after.ok()) SyncKnown(*after);
    return generation;
  }

  // The server's word on what is in the cache; a pending EOS may not have come as a token.
  void SyncKnown(const v1::Session& session) {
    length_ = session.length_tokens();
    if (length_ > static_cast<int64_t>(known_.size())) {
      // Cannot be: somebody else works on our session. Start over rather than guess.
      known_.clear();
      length_ = 0;
      (void)session_.Reset();
      return;
    }
    known_.resize(length_);
    if (session.has_next_token_id()) known_.push_back(session.next_token_id());
  }

  const Options& options_;
  Context& context_;
  client::Session session_;
  std::string system_;
  std::vector<v1::ChatMessage> messages_;
  std::vector<int32_t> known_;  // of the session; see PlanChatTurn
  int64_t length_ = 0;
  int64_t turns_ = 0, prefilled_ = 0, reused_ = 0;
};

// Prints the answer's end. Returns the exit code of the turn.
int Show(const absl::StatusOr<Generation>& generation, const Chat& chat, const Context& context) {
  if (!context.json) std::fputs("\n", stdout);
  std::fflush(stdout);
  if (!generation.ok()) return ReportError(generation.status(), chat.session_id());
  if (context.json) {
    PrintJson(ToJson(*generation));
  } else {
    std::fprintf(stderr, "%s\n", Dim(SummaryLine(*generation)).c_str());
  }
  if (generation->finish.reason() == v1::FINISH_REASON_CAPACITY) {
    std::fputs("latchctl: the session is full: /reset starts over, --capacity gives more\n",
               stderr);
  }
  if (!generation->violated()) return kOk;
  return ReportError(client::ViolationError(generation->finish.violation()), chat.session_id());
}

// A line that starts with "/". False: leave the chat.
bool RunSlash(const std::string& line, Chat& chat) {
  if (line == "/quit" || line == "/exit") return false;
  absl::Status status;
  if (line == "/reset") {
    status = chat.Reset();
  } else if (line == "/stats") {
    std::fprintf(stderr, "%s\n", chat.Stats().c_str());
  } else if (line.rfind("/system", 0) == 0) {
    status = chat.ChangeSystem(line.size() > 8 ? line.substr(8) : "");
  } else {
    std::fputs(
        "/reset forget the conversation   /system TEXT set the system message and start over\n"
        "/stats what the KV cache saved   /quit leave\n",
        stderr);
  }
  if (!status.ok()) ReportError(status);
  return true;
}

int Run(const Options& options, Context& context) {
  const auto model = context.client.GetModel();
  if (!model.ok()) return ReportError(model.status());
  if (!model->has_chat_template()) {
    std::fprintf(
        stderr,
        "latchctl: the model %s has no chat template: use latchctl generate --prompt TEXT\n",
        EscapeControl(model->name()).c_str());
    return kServerError;
  }
  Chat chat(options, context);
  if (absl::Status status = chat.Open(); !status.ok()) return ReportError(status);
  if (options.once.has_value()) return Show(chat.Turn(*options.once), chat, context);

  LineReader lines(context.interrupt);
  if (lines.interactive()) {
    std::fprintf(stderr, "%s. /help lists commands, Ctrl-D leaves.\n",
                 EscapeControl(model->name()).c_str());
  }
  int code = kOk;
  while (const auto line = lines.Next("> ")) {
    if (line->empty()) continue;
    if (!IsUtf8(*line)) {
      code = ReportError(absl::InvalidArgumentError("message: expected UTF-8, got other bytes"));
      continue;
    }
    if (line->front() == '/') {
      if (!RunSlash(*line, chat)) break;
      continue;
    }
    const int turn = Show(chat.Turn(*line), chat, context);
    if (turn == kInterrupted && lines.interactive()) {
      context.interrupt.Rearm();  // Ctrl-C ends the answer, not the chat
    } else if (turn != kOk) {
      code = turn;
      if (turn == kInterrupted || turn == kCannotConnect) break;
    }
  }
  if (context.interrupt.requested() && code == kOk) return kInterrupted;
  return lines.interactive() && code != kCannotConnect ? kOk : code;
}

}  // namespace

void AddChat(CLI::App& app, Command& selected) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("chat", "Talk with the model in its own chat format");
  command->footer(
      "One session lives as long as the chat: each turn prefills only what is new.\n"
      "Examples:\n"
      "  latchctl chat --system 'You are brief.'\n"
      "  latchctl chat --once 'What is a latch?'\n"
      "  printf 'Hi\\nWhat did I say?\\n' | latchctl chat --json");
  command->add_option("--system", options->system, "System message");
  command->add_option("--once", options->once, "One message, one answer, then leave");
  command->add_option("-n,--max-tokens", options->max_tokens, "Of one answer at most")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 30));
  command->add_option("--capacity", options->capacity,
                      "Tokens of the whole chat; 0: the longest the daemon allows");
  options->sampling.AddTo(*command);
  command->callback([options, &selected] {
    selected = [options](Context& context) { return Run(*options, context); };
  });
}

}  // namespace latchd::cli
