#pragma once

#include <cstdint>
#include <string>
#include <vector>

// Text for people: nothing here lets bytes that a model chose steer the terminal.

namespace latchd::cli {

// On one line: control characters and bytes that are not UTF-8 become \n, \t, \xNN; a backslash is
// doubled.
std::string EscapeControl(const std::string& bytes);
// For streamed text on a terminal: the same, but newlines and tabs stay and a backslash stays
// single.
std::string TerminalText(const std::string& text);
// "\" the\"": a token's piece in a table.
std::string Quote(const std::string& piece);

std::string FormatBytes(int64_t bytes);        // 1.5 GiB
std::string FormatCount(int64_t count);        // 12,345
std::string FormatMicros(double micros);       // 950 us, 1.25 ms, 2.50 s
std::string FormatUnixMillis(int64_t millis);  // 2026-01-31 12:00:00 UTC, "-" for 0

// Dim on a terminal (unless NO_COLOR is set), plain elsewhere. For lines on stderr.
std::string Dim(const std::string& text);
bool StdoutIsTerminal();

// Columns as wide as their widest cell; those whose cells all begin with a digit, sign or dash are
// right-aligned.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
  void AddRow(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string ToString() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace latchd::cli
