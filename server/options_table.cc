#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/options.h"

namespace latchd {
namespace {

bool IsDevice(std::string_view value) {
  if (value == "auto" || value == "cpu" || value == "cuda") return true;
  if (value.rfind("cuda:", 0) != 0) return false;
  const std::string index(value.substr(5));
  return !index.empty() && index.size() <= 3 &&
         std::all_of(index.begin(), index.end(), absl::ascii_isdigit);
}
bool IsDtype(std::string_view value) {
  return value == "auto" || value == "f32" || value == "f16" || value == "bf16";
}
bool IsListen(std::string_view value) { return ParseAddress(value).has_value(); }
bool IsHttp(std::string_view value) {
  if (value.empty()) return true;
  const auto address = ParseAddress(value);
  return address && address->unix_path.empty();
}
bool IsLogLevel(std::string_view value) {
  return value == "debug" || value == "info" || value == "warning" || value == "error" ||
         value == "off";
}
bool IsLogFormat(std::string_view value) { return value == "text" || value == "json"; }

using S = std::string& (*)(Options&);
using I = int64_t& (*)(Options&);
using N = int& (*)(Options&);
using B = bool& (*)(Options&);
using D = absl::Duration& (*)(Options&);

std::vector<Flag> MakeTable() {
  // Limits keep sums and products of these numbers far from overflow; memory limits them long
  // before.
  constexpr int64_t kTokens = int64_t{1} << 40;
  return {
      {"model", "Model", "PATH",
       "Model to serve: a Hugging Face folder (config.json, *.safetensors, tokenizer.json) or a "
       ".gguf file. Required.",
       "/models/model.gguf", S([](Options& o) -> std::string& { return o.engine.model_path; })},
      {"device", "Model", "DEVICE",
       "Where to compute. auto takes a CUDA GPU when the build and the machine have one, and says "
       "why when it does not.",
       "cuda:0", S([](Options& o) -> std::string& { return o.engine.device; }), 0, 0,
       "auto, cpu, cuda or cuda:N", IsDevice},
      {"dtype", "Model", "DTYPE",
       "Type to hold weights and KV in. auto is the type of the file; quantised files become f16.",
       "bf16", S([](Options& o) -> std::string& { return o.engine.dtype; }), 0, 0,
       "auto, f32, f16 or bf16", IsDtype},
      {"threads", "Model", "COUNT", "Threads of the CPU backend. 0: one for each core.", "8",
       N([](Options& o) -> int& { return o.engine.threads; }), 0, 1024},

      {"listen", "Addresses", "ADDRESS",
       "Where gRPC listens. Port 0 takes a free one. There is "
       "no authentication: keep it on a trusted network.",
       "0.0.0.0:7878", S([](Options& o) -> std::string& { return o.listen; }), 0, 0,
       "HOST:PORT, [IPV6]:PORT or unix:PATH", IsListen},
      {"http", "Addresses", "ADDRESS",
       "Where /healthz, /readyz and /metrics listen. Empty: no HTTP.", "0.0.0.0:7879",
       S([](Options& o) -> std::string& { return o.http; }), 0, 0, "HOST:PORT or nothing", IsHttp},
      {"tls-cert", "Addresses", "PATH",
       "PEM certificate chain for gRPC; needs --tls-key. Empty: plain text.", "/etc/latchd/tls.crt",
       S([](Options& o) -> std::string& { return o.tls_cert; })},
      {"tls-key", "Addresses", "PATH", "PEM private key for --tls-cert.", "/etc/latchd/tls.key",
       S([](Options& o) -> std::string& { return o.tls_key; })},

      {"max-sessions", "Limits", "COUNT", "Sessions open at once.", "256",
       I([](Options& o) -> int64_t& { return o.engine.max_sessions; }), 1,
       EngineOptions::kMaxSessions},
      {"max-rows", "Limits", "ROWS",
       "Most rows in one captured step: graphs are captured for 1, 2, 4, ... up to it.", "32",
       I([](Options& o) -> int64_t& { return o.engine.max_rows; }), 1, EngineOptions::kMaxRows},
      {"kv-tokens", "Limits", "TOKENS",
       "KV memory over all sessions, in tokens. 0: chosen from the memory that is free.", "131072",
       I([](Options& o) -> int64_t& { return o.engine.kv_tokens; }), 0, kTokens},
      {"max-capacity", "Limits", "TOKENS",
       "Longest session that may be opened. 0: the model's context length.", "8192",
       I([](Options& o) -> int64_t& { return o.engine.max_capacity; }), 0, kTokens},
      {"prefill-chunk", "Limits", "TOKENS",
       "Prompt tokens processed between two decode steps: smaller keeps running generations "
       "smooth, larger finishes prompts sooner. 0: chosen for the device.",
       "512", I([](Options& o) -> int64_t& { return o.engine.prefill_chunk; }), 0,
       EngineOptions::kMaxPrefillChunk},
      {"attention-memory", "Limits", "BYTES",
       "Memory for the caches of AttentionService's sessions. 0: the service is off.", "4294967296",
       I([](Options& o) -> int64_t& { return o.engine.attention_memory; }), 0,
       EngineOptions::kMaxAttentionMemory},
      {"max-queue", "Limits", "REQUESTS",
       "Requests that may wait for the device; more are refused with RESOURCE_EXHAUSTED.", "1024",
       I([](Options& o) -> int64_t& { return o.engine.max_queue; }), 1, EngineOptions::kMaxQueue},
      {"session-ttl", "Limits", "DURATION",
       "Idle time after which a session is closed, unless its client asked for another.", "10m",
       D([](Options& o) -> absl::Duration& { return o.engine.default_ttl; }), 1, 365 * 86400},
      {"max-message-bytes", "Limits", "BYTES",
       "Largest gRPC message in either direction. Logits need 4 bytes times the vocabulary.",
       "16777216", I([](Options& o) -> int64_t& { return o.max_message_bytes; }), 65536,
       int64_t{1} << 30},

      {"drain-timeout", "Operation", "DURATION",
       "After SIGTERM, how long running work may go on before it is cancelled.", "30s",
       D([](Options& o) -> absl::Duration& { return o.drain_timeout; }), 0, 86400},
      {"stall-timeout", "Operation", "DURATION",
       "/readyz fails when work has been pending this long without one good step.", "2m",
       D([](Options& o) -> absl::Duration& { return o.stall_timeout; }), 1, 86400},
      {"log-level", "Operation", "LEVEL", "Least severe records to log; debug logs each RPC.",
       "info", S([](Options& o) -> std::string& { return o.log_level; }), 0, 0,
       "debug, info, warning, error or off", IsLogLevel},
      {"log-format", "Operation", "FORMAT", "One record a line on stderr, as text or JSON.", "json",
       S([](Options& o) -> std::string& { return o.log_format; }), 0, 0, "text or json",
       IsLogFormat},
      {"enable-fault-injection", "Operation", "BOOL",
       "Serve InjectFault and GetKvDigest, which break sessions on purpose. For tests only.",
       "false", B([](Options& o) -> bool& { return o.engine.fault_injection; })},
  };
}

}  // namespace

const std::vector<Flag>& FlagTable() {
  static const auto& table = *new std::vector<Flag>(MakeTable());
  return table;
}

std::optional<Address> ParseAddress(std::string_view text) {
  Address address;
  if (text.rfind("unix:", 0) == 0) {
    address.unix_path = text.substr(5);
    // sockaddr_un holds 108 bytes with the final zero.
    if (address.unix_path.empty() || address.unix_path.size() > 107) return std::nullopt;
    return address;
  }
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  std::string_view host = text.substr(0, colon);
  const std::string port(text.substr(colon + 1));
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find_first_of(":[]") != std::string_view::npos) {
    return std::nullopt;  // an IPv6 address needs brackets
  }
  if (host.empty() || port.empty() || port.size() > 5) return std::nullopt;
  if (!std::all_of(port.begin(), port.end(), absl::ascii_isdigit)) return std::nullopt;
  if (!absl::SimpleAtoi(port, &address.port) || address.port > 65535) return std::nullopt;
  address.host = host;
  return address;
}

std::string EnvironmentName(const Flag& flag) {
  std::string name = absl::StrCat("LATCHD_", absl::AsciiStrToUpper(flag.name));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::string DefaultText(const Flag& flag) {
  Options defaults;
  return std::visit(
      [&](auto field) -> std::string {
        const auto& value = field(defaults);
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::string>)
          return value;
        else if constexpr (std::is_same_v<T, bool>)
          return value ? "true" : "false";
        else if constexpr (std::is_same_v<T, absl::Duration>)
          return absl::FormatDuration(value);
        else
          return absl::StrCat(value);
      },
      flag.field);
}

}  // namespace latchd
