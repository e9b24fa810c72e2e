"""Starts latchd for a benchmark and measures one generation through latchctl."""

import json
import os
import re
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Run:
    """One generation. tokens_per_s is decode alone: without the prompt, without the first token."""

    token_ids: list[int]
    tokens_per_s: float
    step_p50_us: float
    ttft_ms: float


class Daemon:
    """A latchd process on free loopback ports; a context manager that stops it.

    `cores`: ids it is pinned to, or None.
    """

    def __init__(self, bin_dir: Path, model: Path, flags: list[str], cores: set[int] | None = None):
        self.bin_dir = bin_dir
        command = [str(bin_dir / "latchd"), "--model", str(model), *flags]
        command += ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        self.log = tempfile.NamedTemporaryFile("r", prefix="latchd-bench-", suffix=".log")
        begin = time.monotonic()
        with open(self.log.name, "w") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out)
        if cores is not None:
            os.sched_setaffinity(self.process.pid, cores)
        self.server = self._wait_for_address()
        self.start_s = time.monotonic() - begin

    def _wait_for_address(self) -> str:
        while True:
            text = Path(self.log.name).read_text()
            # The report is printed when the daemon can serve.
            if found := re.search(r"^ *gRPC +(\S+)$", text, re.M):
                return found[1]
            if self.process.poll() is not None:
                raise SystemExit(f"latchd did not start:\n{text[-2000:]}")
            time.sleep(0.05)

    def peak_rss_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024

    def generate(self, prompt_ids: list[int], count: int) -> Run:
        """Greedy, past any end-of-text token."""
        out = subprocess.run(
            [
                *(str(self.bin_dir / "latchctl"), "--server", self.server, "--json", "generate"),
                *("--prompt-ids", ",".join(map(str, prompt_ids)), "--max-tokens", str(count)),
                *("--temperature", "0", "--ignore-eos"),
            ],
            text=True,
            check=True,
            stdout=subprocess.PIPE,
        ).stdout
        answer = json.loads(out)
        usage, timings = answer["usage"], answer["timings"]
        steps = usage["generated_tokens"] - 1
        return Run(
            answer["token_ids"],
            steps / (usage["decode_us"] * 1e-6),
            timings["step_p50_us"],
            timings["ttft_ms"],
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.log.close()
