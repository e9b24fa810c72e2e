#include <cstdio>
#include <string>

#include "absl/strings/str_format.h"
#include "client/cli/command.h"
#include "client/cli/format.h"
#include "client/cli/json.h"

namespace latchd::cli {
namespace {

Json ToJson(const v1::GetModelResponse& model) {
  Json json = {{"name", model.name()},
               {"architecture", model.architecture()},
               {"path", model.path()},
               {"fingerprint", model.fingerprint()},
               {"dtype", model.dtype()},
               {"layers", model.layers()},
               {"hidden", model.hidden()},
               {"q_heads", model.q_heads()},
               {"kv_heads", model.kv_heads()},
               {"head_dim", model.head_dim()},
               {"feed_forward", model.feed_forward()},
               {"vocab", model.vocab()},
               {"context_tokens", model.context_tokens()},
               {"has_tokenizer", model.has_tokenizer()},
               {"has_chat_template", model.has_chat_template()}};
  json["bos_token_id"] = model.has_bos_token_id() ? Json(model.bos_token_id()) : Json(nullptr);
  json["eos_token_ids"] = model.eos_token_ids();
  return json;
}

Json ToJson(const v1::GetStatusResponse& status) {
  Json graphs = Json::array();
  for (const auto& graph : status.graphs()) {
    graphs.push_back({{"signature", graph.signature()},
                      {"nodes", graph.nodes()},
                      {"bytes", graph.bytes()},
                      {"replays", graph.replays()}});
  }
  Json json = {{"version", status.version()},
               {"backend", status.backend()},
               {"device", status.device()},
               {"device_note", status.device_note()},
               {"sessions", status.sessions()},
               {"max_sessions", status.max_sessions()},
               {"kv_tokens_total", status.kv_tokens_total()},
               {"kv_tokens_free", status.kv_tokens_free()},
               {"max_capacity_tokens", status.max_capacity_tokens()},
               {"weight_bytes", status.weight_bytes()},
               {"kv_bytes", status.kv_bytes()},
               {"graph_bytes", status.graph_bytes()},
               {"other_bytes", status.other_bytes()},
               {"graphs", graphs},
               {"graph_hits", status.graph_hits()},
               {"graph_misses", status.graph_misses()},
               {"graph_captures", status.graph_captures()},
               {"uptime_ms", status.uptime_ms()}};
  json["last_good_step_ms_ago"] =
      status.has_last_good_step_ms_ago() ? Json(status.last_good_step_ms_ago()) : Json(nullptr);
  json["draining"] = status.draining();
  json["fault"] = status.fault();
  json["fault_injection"] = status.fault_injection();
  return json;
}

std::string Health(const v1::GetStatusResponse& status) {
  if (!status.fault().empty()) return "FAULT: " + EscapeControl(status.fault());
  std::string health = status.draining() ? "draining" : "serving";
  if (status.has_last_good_step_ms_ago()) {
    health += absl::StrFormat(", last good step %s ago",
                              FormatMicros(1e3 * status.last_good_step_ms_ago()));
  }
  return health + (status.fault_injection() ? ", fault injection enabled" : "");
}

void Line(const char* name, const std::string& value) {
  std::printf("%-10s %s\n", name, value.c_str());
}

void PrintReport(const v1::GetModelResponse& model, const v1::GetStatusResponse& status) {
  Line("latchd",
       status.version() + ", up " + absl::FormatDuration(absl::Seconds(status.uptime_ms() / 1000)));
  Line("health", Health(status));
  Line("model", EscapeControl(absl::StrFormat("%s (%s), computes in %s", model.name(),
                                              model.architecture(), model.dtype())));
  Line("", absl::StrFormat("%d layers, hidden %d, %d/%d heads of %d, feed-forward %d, vocab %s",
                           model.layers(), model.hidden(), model.q_heads(), model.kv_heads(),
                           model.head_dim(), model.feed_forward(), FormatCount(model.vocab())));
  Line("",
       absl::StrFormat("context %s tokens, tokenizer %s, chat template %s",
                       FormatCount(model.context_tokens()), model.has_tokenizer() ? "yes" : "no",
                       model.has_chat_template() ? "yes" : "no"));
  Line("", EscapeControl(model.path()));
  Line("device", EscapeControl(status.backend() + ": " + status.device()));
  if (!status.device_note().empty()) Line("", EscapeControl(status.device_note()));
  Line("memory",
       absl::StrFormat("weights %s, KV %s, graphs %s, other %s", FormatBytes(status.weight_bytes()),
                       FormatBytes(status.kv_bytes()), FormatBytes(status.graph_bytes()),
                       FormatBytes(status.other_bytes())));
  Line("sessions",
       absl::StrFormat("%d of %d; KV tokens free %s of %s; longest session %s", status.sessions(),
                       status.max_sessions(), FormatCount(status.kv_tokens_free()),
                       FormatCount(status.kv_tokens_total()),
                       FormatCount(status.max_capacity_tokens())));
  Line("graphs",
       absl::StrFormat("%d captures, %s hits, %s misses", status.graph_captures(),
                       FormatCount(status.graph_hits()), FormatCount(status.graph_misses())));
  if (status.graphs_size() == 0) return;
  Table table({"replays", "nodes", "bytes", "signature"});
  for (const auto& graph : status.graphs()) {
    table.AddRow({FormatCount(graph.replays()), FormatCount(graph.nodes()),
                  FormatBytes(graph.bytes()), EscapeControl(graph.signature())});
  }
  std::printf("\n%s", table.ToString().c_str());
}

int Run(Context& context) {
  const auto model = context.client.GetModel();
  if (!model.ok()) return ReportError(model.status());
  const auto status = context.client.GetStatus();
  if (!status.ok()) return ReportError(status.status());
  if (context.json) {
    Json json = ToJson(*status);
    json["model"] = ToJson(*model);
    PrintJson(json);
  } else {
    PrintReport(*model, *status);
  }
  return kOk;
}

}  // namespace

void AddStatus(CLI::App& app, Command& selected) {
  app.add_subcommand("status", "Show model, device, memory, captured graphs and health")
      ->footer("Examples:\n  latchctl status\n  latchctl status --json | jq .graph_hits")
      ->callback([&selected] { selected = Run; });
}

}  // namespace latchd::cli
