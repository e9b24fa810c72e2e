#pragma once

#include "server/server.h"

namespace latchd {

// Exit codes of the daemon: what a supervisor can act on.
inline constexpr int kExitOk = 0;        // drained, or asked for --help and the like
inline constexpr int kExitInternal = 1;  // our own bug
inline constexpr int kExitBadStart =
    2;  // options, model, device or address: do not restart unchanged
inline constexpr int kExitDeviceFault = 3;  // sticky device fault: restart

// The whole life of the process: options, logging, start, signals, drain, stop. SIGTERM or SIGINT
// drains (exit 0); a second one, or one during the load, ends the process at once. `create` makes
// the engine: Engine::Create, or a puppet in tests. Prints every error of the start as one line on
// stderr.
int RunDaemon(int argc, char** argv, const EngineFactory& create);

}  // namespace latchd
