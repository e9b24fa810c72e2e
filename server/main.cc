#include "runtime/engine.h"
#include "server/daemon.h"

int main(int argc, char** argv) { return latchd::RunDaemon(argc, argv, latchd::Engine::Create); }
