#include "server/logging.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace latchd {
namespace {

std::atomic<LogFormat> g_format{LogFormat::kText};

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
    case LogLevel::kOff: return spdlog::level::off;
  }
  return spdlog::level::info;
}

const char* LevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return "debug";
    case LogLevel::kInfo: return "info";
    case LogLevel::kWarning: return "warning";
    case LogLevel::kError: return "error";
    case LogLevel::kOff: return "off";
  }
  return "info";
}

// JSON's own escaping covers quotes, backslashes, control characters and broken UTF-8.
std::string Quote(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

bool NeedsQuotes(const std::string& text) {
  if (text.empty()) return true;
  for (const unsigned char c : text) {
    if (c <= ' ' || c == '"' || c == '=' || c == '\\' || c >= 0x7F) return true;
  }
  return false;
}

void GrpcLog(gpr_log_func_args* args) {
  const LogLevel level =
      args->severity == GPR_LOG_SEVERITY_ERROR ? LogLevel::kWarning : LogLevel::kDebug;
  Log(level, "grpc", {{"text", args->message}});
}

// A client can make protobuf complain ("String field ... contains invalid UTF-8"): field names
// only, but it must not break the format of the log.
void ProtobufLog(google::protobuf::LogLevel, const char*, int, const std::string& text) {
  Log(LogLevel::kDebug, "protobuf", {{"text", text}});
}

}  // namespace

void InitLogging(LogLevel level, LogFormat format) {
  g_format = format;
  auto logger =
      std::make_shared<spdlog::logger>("latchd", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  // JSON records bring their own time and level.
  logger->set_pattern(format == LogFormat::kJson ? "%v" : "%Y-%m-%dT%H:%M:%S.%e%z %-7l %v");
  logger->set_level(ToSpdlog(level));
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
  gpr_set_log_function(GrpcLog);
  google::protobuf::SetLogHandler(ProtobufLog);
  gpr_set_log_verbosity(level == LogLevel::kDebug ? GPR_LOG_SEVERITY_INFO : GPR_LOG_SEVERITY_ERROR);
}

LogLevel ParseLogLevel(const std::string& name) {
  for (const LogLevel level :
       {LogLevel::kDebug, LogLevel::kWarning, LogLevel::kError, LogLevel::kOff}) {
    if (name == LevelName(level)) return level;
  }
  return LogLevel::kInfo;
}

LogFormat ParseLogFormat(const std::string& name) {
  return name == "json" ? LogFormat::kJson : LogFormat::kText;
}

bool LogEnabled(LogLevel level) { return spdlog::should_log(ToSpdlog(level)); }

void Log(LogLevel level, const std::string& message, const nlohmann::json& fields) {
  if (!LogEnabled(level)) return;
  const std::string line =
      g_format == LogFormat::kJson
          ? FormatJsonRecord(
                absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", absl::Now(), absl::UTCTimeZone()),
                LevelName(level), message, fields)
          : FormatTextRecord(message, fields);
  // As an argument, never as the format string: the text may hold braces.
  spdlog::log(ToSpdlog(level), "{}", line);
}

void FlushLog() { spdlog::default_logger()->flush(); }

std::string FormatTextRecord(const std::string& message, const nlohmann::json& fields) {
  const std::string quoted = Quote(message);
  std::string line = quoted.substr(1, quoted.size() - 2);
  for (const auto& [key, value] : fields.items()) {
    std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    if (value.is_string() && NeedsQuotes(text)) text = Quote(text);
    absl::StrAppend(&line, " ", key, "=", text);
  }
  return line;
}

std::string FormatJsonRecord(const std::string& time, const std::string& level,
                             const std::string& message, const nlohmann::json& fields) {
  nlohmann::ordered_json record = {{"time", time}, {"level", level}, {"message", message}};
  for (const auto& [key, value] : fields.items()) record[key] = value;
  return record.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace latchd
