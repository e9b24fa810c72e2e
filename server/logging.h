#pragma once

#include <nlohmann/json.hpp>
#include <string>

// Logging of the daemon: one record a line on stderr, as text or JSON. Never log what a client sent
// as prompt, stop string or text: RPC errors name fields, sizes and numbers only.

namespace latchd {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };
enum class LogFormat { kText, kJson };

// Called once, before other threads log. Also takes over gRPC's own messages (as debug, errors as
// warnings).
void InitLogging(LogLevel level, LogFormat format);
// "debug", "info", "warning", "error", "off"; "text", "json". REQUIRES: one of these (options.cc
// has checked).
LogLevel ParseLogLevel(const std::string& name);
LogFormat ParseLogFormat(const std::string& name);

bool LogEnabled(LogLevel level);
// `fields`: a JSON object of scalars. Thread-safe.
void Log(LogLevel level, const std::string& message, const nlohmann::json& fields = {});
void FlushLog();

// The line that Log writes, without time and level for text; exposed for tests. Control characters
// are escaped in both formats, so a record never spans two lines, whatever a file name or an error
// text holds.
std::string FormatTextRecord(const std::string& message, const nlohmann::json& fields);
std::string FormatJsonRecord(const std::string& time, const std::string& level,
                             const std::string& message, const nlohmann::json& fields);

}  // namespace latchd
