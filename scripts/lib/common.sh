# Sourced by the scripts: where the repository is, and how to speak. Sets no shell options.
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

say() { printf '==> %s\n' "$*" >&2; }
die() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

# The help of a script is the comment block at its top.
help_of() { sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$1"; }

# Builds the CPU preset unless a GPU and a CUDA compiler are both here.
default_preset() {
  if has_nvcc && command -v nvidia-smi > /dev/null && nvidia-smi -L 2> /dev/null | grep -q GPU; then
    echo cuda-release
  else
    echo cpu-release
  fi
}

has_nvcc() { command -v nvcc > /dev/null || [ -x /usr/local/cuda/bin/nvcc ]; }

# configure PRESET [CMAKE OPTION...]: does nothing when the folder is configured already; ninja
# configures again by itself when a CMake file changes.
configure() {
  local preset=$1
  shift
  has_nvcc && PATH=$PATH:/usr/local/cuda/bin
  if [ ! -f "$ROOT/build/$preset/build.ninja" ] || [ $# -gt 0 ]; then
    (cd "$ROOT" && cmake --preset "$preset" "$@" > "$ROOT/build/configure.log" 2>&1) ||
      { cat "$ROOT/build/configure.log" >&2; return 1; }
  fi
}
