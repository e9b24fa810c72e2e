#include "runtime/tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "runtime/tokenizer/utf8.h"

namespace latchd {
namespace {

absl::Status Apply(const PrependNormalizer& step, std::string* text) {
  if (!text->empty()) text->insert(0, step.text);
  return absl::OkStatus();
}

absl::Status Apply(const ReplaceNormalizer& step, std::string* text) {
  const std::vector<Range> whole = {{0, static_cast<uint32_t>(text->size())}};
  absl::StatusOr<std::vector<Pattern::Match>> matches = step.pattern->FindAll(*text, whole);
  if (!matches.ok()) return matches.status();
  if (matches->empty()) return absl::OkStatus();
  std::string out;
  out.reserve(text->size() + matches->size() * step.with.size());
  size_t at = 0;
  for (const Pattern::Match& match : *matches) {
    out.append(*text, at, match.range.begin - at);
    out.append(step.with);
    at = match.range.end;
  }
  out.append(*text, at);
  *text = std::move(out);
  return absl::OkStatus();
}

absl::Status Apply(const StripNormalizer& step, std::string* text) {
  size_t begin = 0, kept = 0;
  bool seen = false;
  for (size_t i = 0; i < text->size();) {
    const size_t start = i;
    if (IsUnicodeSpace(NextCodePoint(*text, &i))) continue;
    if (!seen) begin = start;
    seen = true;
    kept = i;
  }
  if (!seen) begin = text->size(), kept = 0;  // all blank: either side strips the whole
  if (step.right) text->resize(kept);
  if (step.left) text->erase(0, std::min(begin, text->size()));
  return absl::OkStatus();
}

absl::Status Apply(UnicodeForm form, std::string* text) { return NormalizeUnicode(form, text); }

bool IsAscii(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; });
}

}  // namespace

absl::Status Normalizer::Apply(std::string* text) const {
  for (const Step& step : steps_) {
    absl::Status status =
        std::visit([&](const auto& kind) { return latchd::Apply(kind, text); }, step);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status NormalizeUnicode(UnicodeForm form, std::string* text) {
  if (IsAscii(*text)) return absl::OkStatus();
  const bool compatible = form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd;
  const bool compose = form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc;
  const auto decompose_options = static_cast<utf8proc_option_t>(
      UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0));

  std::vector<utf8proc_int32_t> points;
  points.reserve(text->size());
  for (size_t i = 0; i < text->size();) {
    const auto point = static_cast<utf8proc_int32_t>(NextCodePoint(*text, &i));
    utf8proc_int32_t parts[32];  // the longest decomposition has 18 code points
    int boundary = 0;
    const utf8proc_ssize_t n =
        utf8proc_decompose_char(point, parts, std::size(parts), decompose_options, &boundary);
    if (n < 0 || n > static_cast<utf8proc_ssize_t>(std::size(parts))) {
      return absl::InternalError(absl::StrCat("utf8proc: ", utf8proc_errmsg(n)));
    }
    points.insert(points.end(), parts, parts + n);
  }

  // Canonical order. utf8proc_decompose sorts by swapping neighbours, which is quadratic on a
  // megabyte of combining marks, so the runs are sorted here.
  const auto combining = [](utf8proc_int32_t c) {
    return utf8proc_get_property(c)->combining_class;
  };
  for (size_t i = 0; i < points.size();) {
    size_t end = i;
    while (end < points.size() && combining(points[end]) != 0) ++end;
    std::stable_sort(points.begin() + i, points.begin() + end,
                     [&](auto a, auto b) { return combining(a) < combining(b); });
    i = end + 1;
  }

  utf8proc_ssize_t size = static_cast<utf8proc_ssize_t>(points.size());
  if (compose) {
    size = utf8proc_normalize_utf32(
        points.data(), size, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    if (size < 0) return absl::InternalError(absl::StrCat("utf8proc: ", utf8proc_errmsg(size)));
  }
  std::string out;
  out.reserve(text->size());
  for (utf8proc_ssize_t i = 0; i < size; ++i) AppendUtf8(static_cast<char32_t>(points[i]), &out);
  *text = std::move(out);
  return absl::OkStatus();
}

}  // namespace latchd
