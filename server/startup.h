#pragma once

#include <string>

#include "absl/status/status.h"
#include "runtime/engine.h"
#include "server/options.h"

// What a person sees while the daemon starts.

namespace latchd {

// Draws load progress on stderr: a bar that redraws itself on a terminal, else a plain line for
// each stage.
Progress StartupProgress(bool is_terminal);
// The bar: "load weights [=====     ]  50% (1.2 of 2.4 GiB)". Units only for byte-sized totals.
std::string ProgressBar(const std::string& stage, int64_t done, int64_t total);

// Device, model, type, memory by kind, graphs, addresses: one fact a line.
std::string StartupReport(const EngineStatus& status, const std::string& grpc_address,
                          const std::string& http_address);
std::string HumanBytes(size_t bytes);  // "1.2 GiB"

// Proves that a listen address is free by binding it for a moment, so that a port in use is known
// before a model is loaded for minutes, and with the reason. INVALID_ARGUMENT naming `flag` and the
// address.
absl::Status CheckAddressFree(const Address& address, const std::string& flag);

}  // namespace latchd
