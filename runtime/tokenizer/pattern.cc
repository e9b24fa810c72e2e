#include "runtime/tokenizer/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "runtime/tokenizer/utf8.h"

namespace latchd {
namespace {

// One match attempt may backtrack this often: enough for megabytes of blanks under `\s+(?!\S)`.
constexpr uint32_t kMatchLimit = 50'000'000;
constexpr uint32_t kHeapLimitKib = 64 * 1024;
constexpr size_t kJitStackBytes = 1024 * 1024;
// A pattern that stays below the limit at each of a million positions still must not hang a server.
// Sane patterns run at more than 5 MB/s, fifty times faster than this allows.
constexpr absl::Duration kBaseTime = absl::Seconds(5);
constexpr absl::Duration kTimePerByte = absl::Microseconds(10);

std::string PcreError(int code) {
  PCRE2_UCHAR buffer[256];
  if (pcre2_get_error_message(code, buffer, sizeof buffer) < 0) return absl::StrCat("PCRE2 ", code);
  return reinterpret_cast<const char*>(buffer);
}

// What one FindAll needs; never shared between threads.
struct MatchState {
  explicit MatchState(const pcre2_code* code)
      : data(pcre2_match_data_create_from_pattern(code, nullptr)),
        context(pcre2_match_context_create(nullptr)),
        stack(pcre2_jit_stack_create(32 * 1024, kJitStackBytes, nullptr)) {
    if (context == nullptr) return;
    pcre2_set_match_limit(context, kMatchLimit);
    pcre2_set_heap_limit(context, kHeapLimitKib);
    if (stack != nullptr) pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~MatchState() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
  pcre2_match_data* data;
  pcre2_match_context* context;
  pcre2_jit_stack* stack;
};

}  // namespace

struct Pattern::Code {
  std::string shown;  // for errors
  pcre2_code* pcre = nullptr;
  ~Code() { pcre2_code_free(pcre); }
};

Pattern::Pattern(std::unique_ptr<Code> code) : code_(std::move(code)) {}
Pattern::~Pattern() = default;

absl::StatusOr<std::unique_ptr<Pattern>> Pattern::CompilePcre(const std::string& pcre,
                                                              const std::string& shown) {
  // MULTILINE and LF: Ruby's ^ and $ are always line anchors.
  constexpr uint32_t kOptions =
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_UTF_CHECK;
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  if (context == nullptr) return absl::ResourceExhaustedError("no memory for a pattern");
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  auto code = std::make_unique<Code>();
  code->shown = shown;
  code->pcre = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pcre.data()), pcre.size(), kOptions,
                             &error, &offset, context);
  pcre2_compile_context_free(context);
  if (code->pcre == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("not a regular expression: ", PcreError(error)));
  }
  // Where the system forbids writable code, matching falls back to PCRE2's interpreter.
  pcre2_jit_compile(code->pcre, PCRE2_JIT_COMPLETE);
  return std::unique_ptr<Pattern>(new Pattern(std::move(code)));
}

absl::StatusOr<std::unique_ptr<Pattern>> Pattern::Compile(const std::string& oniguruma) {
  // The text must be UTF-8 before the compiler may skip its own check.
  if (ValidUtf8Prefix(oniguruma) != oniguruma.size()) {
    return absl::InvalidArgumentError("the pattern is not UTF-8");
  }
  absl::StatusOr<std::string> pcre = TranslateOniguruma(oniguruma);
  if (!pcre.ok()) return pcre.status();
  return CompilePcre(*pcre, oniguruma);
}

absl::StatusOr<std::unique_ptr<Pattern>> Pattern::Literal(std::string_view text) {
  if (ValidUtf8Prefix(text) != text.size()) {
    return absl::InvalidArgumentError("the pattern is not UTF-8");
  }
  std::string pcre;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain =
        byte >= 0x80 || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (plain) {
      pcre.push_back(c);
    } else {
      absl::StrAppend(&pcre, "\\x{", absl::Hex(byte), "}");
    }
  }
  return CompilePcre(pcre, std::string(text));
}

absl::StatusOr<std::vector<Pattern::Match>> Pattern::FindAll(
    std::string_view text, const std::vector<Range>& words) const {
  MatchState state(code_->pcre);
  if (state.data == nullptr || state.context == nullptr) {
    return absl::ResourceExhaustedError("no memory to match a tokenizer pattern");
  }
  const absl::Time deadline = absl::Now() + kBaseTime + kTimePerByte * text.size();
  const PCRE2_SIZE* found = pcre2_get_ovector_pointer(state.data);
  std::vector<Match> matches;
  matches.reserve(text.size() / 4);
  uint32_t attempts = 0;
  for (size_t w = 0; w < words.size(); ++w) {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data() + words[w].begin);
    const size_t size = words[w].end - words[w].begin;
    size_t at = 0;
    while (at <= size) {
      const int rc = pcre2_match(code_->pcre, subject, size, at, PCRE2_NO_UTF_CHECK, state.data,
                                 state.context);
      if (rc == PCRE2_ERROR_NOMATCH) break;
      if (rc < 0 || (++attempts % 256 == 0 && absl::Now() > deadline)) {
        return absl::ResourceExhaustedError(
            absl::StrCat("the tokenizer's pattern '", code_->shown, "' gave up at byte ",
                         words[w].begin + at, ": ", rc < 0 ? PcreError(rc) : "too slow"));
      }
      // \K is refused, so the end is never before the start.
      matches.push_back({static_cast<uint32_t>(w),
                         {static_cast<uint32_t>(words[w].begin + found[0]),
                          static_cast<uint32_t>(words[w].begin + found[1])}});
      at = found[1];
      if (found[0] == found[1]) {  // an empty match: go on after the next character
        if (at >= size) break;
        at += Utf8Length(subject[at]);
      }
    }
  }
  return matches;
}

}  // namespace latchd
