#include "client/cli/format.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string_view>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"

namespace latchd::cli {
namespace {

// Bytes of the well-formed UTF-8 character at the front of `text`, 0 when there is none (RFC 3629,
// table 3-7 of the Unicode standard).
size_t Utf8Length(std::string_view text) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = at(0);
  if (lead < 0x80) return 1;
  size_t length = 0;
  unsigned char low = 0x80, high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF)
    length = 2;
  else if (lead >= 0xE0 && lead <= 0xEF)
    length = 3;
  else if (lead >= 0xF0 && lead <= 0xF4)
    length = 4;
  else
    return 0;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  if (text.size() < length || at(1) < low || at(1) > high) return 0;
  for (size_t i = 2; i < length; ++i) {
    if (at(i) < 0x80 || at(i) > 0xBF) return 0;
  }
  return length;
}

bool IsControl(std::string_view character) {
  const auto lead = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return lead < 0x20 || lead == 0x7F;
  // C1 controls U+0080..U+009F: some terminals take them for escape sequences.
  return character.size() == 2 && lead == 0xC2 && static_cast<unsigned char>(character[1]) < 0xA0;
}

void AppendHex(std::string_view bytes, std::string& out) {
  for (const char c : bytes) absl::StrAppendFormat(&out, "\\x%02x", static_cast<unsigned char>(c));
}

std::string Escape(std::string_view text, bool one_line) {
  std::string out;
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    const std::string_view character = text.substr(0, std::max<size_t>(length, 1));
    text.remove_prefix(character.size());
    if (length == 0) {
      AppendHex(character, out);
    } else if (one_line && character == "\\") {
      out += "\\\\";
    } else if (character == "\n") {
      out += one_line ? "\\n" : "\n";
    } else if (character == "\t") {
      out += one_line ? "\\t" : "\t";
    } else if (character == "\r" && one_line) {
      out += "\\r";
    } else if (IsControl(character)) {
      AppendHex(character, out);
    } else {
      out += character;
    }
  }
  return out;
}

// Characters, which is near enough to columns for a table.
size_t Width(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

bool LooksNumeric(const std::string& cell) {
  return cell.empty() || cell[0] == '-' || cell[0] == '+' ||
         std::isdigit(static_cast<unsigned char>(cell[0])) != 0;
}

}  // namespace

std::string EscapeControl(const std::string& bytes) { return Escape(bytes, /*one_line=*/true); }

std::string TerminalText(const std::string& text) { return Escape(text, /*one_line=*/false); }

std::string Quote(const std::string& piece) { return "\"" + EscapeControl(piece) + "\""; }

std::string FormatBytes(int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  for (; value >= 1024.0 && unit < 4; ++unit) value /= 1024.0;
  return absl::StrFormat("%.*f %s", unit == 0 ? 0 : 1, value, kUnits[unit]);
}

std::string FormatCount(int64_t count) {
  std::string digits = std::to_string(count);
  const size_t first = count < 0 ? 1 : 0;
  for (size_t i = digits.size(); i > first + 3;) digits.insert(i -= 3, ",");
  return digits;
}

std::string FormatMicros(double micros) {
  if (micros < 1e3) return absl::StrFormat("%.0f us", micros);
  if (micros < 1e6) return absl::StrFormat("%.2f ms", micros / 1e3);
  return absl::StrFormat("%.2f s", micros / 1e6);
}

std::string FormatUnixMillis(int64_t millis) {
  if (millis == 0) return "-";
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", absl::FromUnixMillis(millis),
                          absl::UTCTimeZone());
}

std::string Dim(const std::string& text) {
  const char* no_color = std::getenv("NO_COLOR");
  const bool plain = isatty(STDERR_FILENO) == 0 || (no_color != nullptr && *no_color != '\0');
  return plain ? text : "\033[2m" + text + "\033[0m";
}

bool StdoutIsTerminal() { return isatty(STDOUT_FILENO) != 0; }

std::string Table::ToString() const {
  const size_t columns = rows_.front().size();
  std::vector<size_t> widths(columns, 0);
  std::vector<bool> numeric(columns, true);
  for (size_t r = 0; r < rows_.size(); ++r) {
    for (size_t c = 0; c < columns; ++c) {
      widths[c] = std::max(widths[c], Width(rows_[r][c]));
      if (r > 0 && !LooksNumeric(rows_[r][c])) numeric[c] = false;
    }
  }
  std::string out;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t c = 0; c < columns; ++c) {
      const std::string padding(widths[c] - Width(row[c]), ' ');
      line += (c == 0 ? "" : "  ") + (numeric[c] ? padding + row[c] : row[c] + padding);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

}  // namespace latchd::cli
