#!/usr/bin/env python3
"""tidy.py BUILD_DIR [--seconds N]: clang-tidy over the product's sources, in bounded time.

Changed files come first, then the others; a file that passed is not checked again until it, a
header or .clang-tidy changes (stamps in BUILD_DIR/tidy). Files left over when the time is up are
named by their number, not failed.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("kernels", "runtime", "server", "client")  # the tests run under the sanitizers instead


def git(*args: str) -> list[str]:
    return subprocess.run(
        ["git", *args], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ).stdout.splitlines()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path)
    parser.add_argument("--seconds", type=float, default=300)
    args = parser.parse_args()
    database = args.build / "compile_commands.json"
    if not database.exists():
        print(f"  {database} is missing: build cpu-release first", file=sys.stderr)
        return 1
    known = {Path(e["file"]) for e in json.loads(database.read_text())}
    own = [f for f in sorted(known) if f.is_relative_to(ROOT) and f.relative_to(ROOT).parts[0] in PRODUCT]
    changed = {ROOT / f for f in git("diff", "--name-only", "HEAD~1")}
    headers = hashlib.sha256()
    for name in sorted(git("ls-files", "*.h", ".clang-tidy")):
        if (ROOT / name).exists():
            headers.update((ROOT / name).read_bytes())
    stamps = args.build / "tidy"
    stamps.mkdir(exist_ok=True)

    def stamp(file: Path) -> Path:
        return stamps / hashlib.sha256(file.read_bytes() + headers.digest()).hexdigest()

    todo = [f for f in own if f.exists() and not stamp(f).exists()]
    todo.sort(key=lambda f: (f not in changed, f))
    deadline = time.monotonic() + args.seconds

    def check(file: Path) -> str | None:
        """None: not reached; "": clean; otherwise what clang-tidy said."""
        if time.monotonic() > deadline:
            return None
        run = subprocess.run(
            ["clang-tidy", "--quiet", "-p", args.build, file],
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        if run.returncode == 0:
            stamp(file).touch()
            return ""
        return run.stdout

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(check, todo))
    bad = [r for r in results if r]
    for text in bad:
        print("\n".join(x for x in text.splitlines() if "warnings generated" not in x))
    left = results.count(None)
    print(
        f"  {len(own)} files: {len(own) - len(todo)} known to be clean, "
        f"{len(todo) - left} checked, {len(bad)} with findings, {left} not reached",
        file=sys.stderr,
    )
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
