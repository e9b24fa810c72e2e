#include <algorithm>
#include <string>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "runtime/tokenizer/tokenizer.h"

// The formats are recognised by the markers in the template's text, and their variants by the
// literals that tell them apart; the template itself is not executed. What a template does beyond
// that (tools, dates of today, reasoning switches) is left out.

namespace latchd {
namespace {

bool Contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// Jinja's trim: blanks at both ends.
std::string Trim(const std::string& text) { return std::string(absl::StripAsciiWhitespace(text)); }

absl::Status CheckMessages(const std::vector<ChatMessage>& messages) {
  if (messages.empty()) {
    return absl::InvalidArgumentError("messages: expected at least one, got none");
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role != "system" && role != "user" && role != "assistant") {
      return absl::InvalidArgumentError(absl::StrCat(
          "messages[", i, "].role: expected system, user or assistant, got '", role, "'"));
    }
  }
  return absl::OkStatus();
}

// The system prompt that a ChatML template writes when the messages have none: the first literal
// `<|im_start|>system\nTEXT<|im_end|>` of its source, or empty. The newline is written as an escape
// or as itself.
std::string DefaultSystemPrompt(std::string_view source) {
  constexpr std::string_view kOpen = "<|im_start|>system", kClose = "<|im_end|>";
  for (size_t at = source.find(kOpen); at != std::string_view::npos;
       at = source.find(kOpen, at + 1)) {
    std::string_view rest = source.substr(at + kOpen.size());
    if (absl::StartsWith(std::string(rest.substr(0, 2)), "\\n")) {
      rest.remove_prefix(2);
    } else if (!rest.empty() && rest[0] == '\n') {
      rest.remove_prefix(1);
    } else {
      continue;
    }
    const size_t end = rest.find(kClose);
    if (end == std::string_view::npos) continue;
    const std::string_view text = rest.substr(0, end);
    // A quote or a brace means that the literal ended and the text comes from somewhere else.
    if (text.empty() || text.find_first_of("'\"{}") != std::string_view::npos) continue;
    return absl::StrReplaceAll(std::string(text), {{"\\n", "\n"}});
  }
  return {};
}

// Earlier answers are shown without their reasoning (Qwen3).
std::string WithoutReasoning(const std::string& content) {
  constexpr std::string_view kEnd = "</think>";
  const size_t at = content.rfind(kEnd);
  if (at == std::string::npos) return content;
  const size_t text = content.find_first_not_of('\n', at + kEnd.size());
  return text == std::string::npos ? std::string() : content.substr(text);
}

std::string RenderChatMl(std::string_view source, const std::vector<ChatMessage>& messages) {
  const bool reasoning = Contains(source, "</think>");
  std::string out;
  const auto turn = [&](const std::string& role, const std::string& content) {
    absl::StrAppend(&out, "<|im_start|>", role, "\n", content, "<|im_end|>\n");
  };
  if (messages[0].role != "system") {
    const std::string system = DefaultSystemPrompt(source);
    if (!system.empty()) turn("system", system);
  }
  for (const ChatMessage& message : messages) {
    const bool strip = reasoning && message.role == "assistant";
    turn(message.role, strip ? WithoutReasoning(message.content) : message.content);
  }
  return absl::StrCat(out, "<|im_start|>assistant\n");
}

std::string RenderLlama3(std::string_view source, const std::vector<ChatMessage>& messages) {
  std::string out;
  const auto turn = [&](const std::string& role, const std::string& content) {
    absl::StrAppend(&out, "<|start_header_id|>", role, "<|end_header_id|>\n\n", content,
                    "<|eot_id|>");
  };
  size_t first = 0;
  // Llama 3.1 and 3.2 always write a system turn. Its date is the template's own default, so that
  // the same messages give the same prompt every day.
  if (Contains(source, "Cutting Knowledge Date")) {
    std::string system = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";
    if (messages[0].role == "system") system += Trim(messages[first++].content);
    turn("system", system);
  }
  for (size_t i = first; i < messages.size(); ++i) {
    turn(messages[i].role, Trim(messages[i].content));
  }
  return absl::StrCat(out, "<|start_header_id|>assistant<|end_header_id|>\n\n");
}

// Llama 2: `[INST] text [/INST] answer </s>`, each user turn with its own BOS, the system prompt
// inside the first one. Mistral: one BOS, and spacing that changed between versions.
absl::StatusOr<std::string> RenderInst(std::string_view source, const std::string& bos,
                                       const std::string& eos,
                                       const std::vector<ChatMessage>& messages) {
  const bool llama2 = Contains(source, "<<SYS>>");
  const bool blank_before_close = llama2 || Contains(source, " [/INST]");
  const bool blank_before_answer =
      llama2 || Contains(source, "' ' + message") || Contains(source, "\" \" + message");
  const bool blank_after_answer =
      llama2 || Contains(source, "eos_token + ' '") || Contains(source, "eos_token + \" \"");
  const bool trim_answer = llama2 || Contains(source, "|trim + eos_token");
  std::string out = llama2 ? "" : bos, system;
  size_t first = 0;
  if (messages[0].role == "system") system = messages[first++].content;
  for (size_t i = first; i < messages.size(); ++i) {
    const bool user = (i - first) % 2 == 0;
    if (messages[i].role != (user ? "user" : "assistant")) {
      return absl::InvalidArgumentError(
          absl::StrCat("messages[", i, "].role: expected ", user ? "user" : "assistant",
                       " (this model's turns alternate), got '", messages[i].role, "'"));
    }
    std::string content = messages[i].content;
    if (!user) {
      if (trim_answer) content = Trim(content);
      absl::StrAppend(&out, blank_before_answer ? " " : "", content, llama2 ? " " : "", eos,
                      !llama2 && blank_after_answer ? " " : "");
      continue;
    }
    if (llama2) {
      if (i == first && !system.empty()) {
        content = absl::StrCat("<<SYS>>\n", system, "\n<</SYS>>\n\n", content);
      }
      absl::StrAppend(&out, bos, "[INST] ", Trim(content), " [/INST]");
    } else {
      // Mistral's own templates put the system prompt before the last user turn's text.
      if (i + 1 == messages.size() && !system.empty())
        content = absl::StrCat(system, "\n\n", content);
      absl::StrAppend(&out, "[INST] ", content, blank_before_close ? " [/INST]" : "[/INST]");
    }
  }
  if (messages.size() == first || messages.back().role != "user") {
    return absl::InvalidArgumentError("messages: expected the last one to be the user's");
  }
  return out;
}

}  // namespace

absl::StatusOr<std::string> ApplyChatTemplate(const Tokenizer& tokenizer,
                                              const std::vector<ChatMessage>& messages) {
  absl::Status status = CheckMessages(messages);
  if (!status.ok()) return status;
  const std::string& source = tokenizer.chat_template();
  const auto text = [&](std::optional<int32_t> id) {
    return id ? tokenizer.TokenBytes(*id) : std::string();
  };
  const std::string bos = Contains(source, "bos_token") ? text(tokenizer.bos_token()) : "";
  if (Contains(source, "<|im_start|>")) return absl::StrCat(bos, RenderChatMl(source, messages));
  if (Contains(source, "<|start_header_id|>")) {
    return absl::StrCat(bos, RenderLlama3(source, messages));
  }
  if (Contains(source, "[INST]")) {
    const std::vector<int32_t> eos = tokenizer.eos_tokens();
    return RenderInst(source, bos, eos.empty() ? "" : text(eos[0]), messages);
  }
  return absl::UnimplementedError(
      source.empty() ? "the model has no chat template"
                     : absl::StrCat("the model's chat template is none of ChatML, Llama 3 and "
                                    "[INST]; it begins: ",
                                    source.substr(0, 80)));
}

}  // namespace latchd
