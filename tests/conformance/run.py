"""run --seed N --cases M [--device cpu|cuda] [--daemon PATH]: random cases of the operator through a daemon.

Compares with a float64 reference, and where it can judge with onnxruntime's CPU operator, which then also judges the
reference. Prints the seed and each failing case; last "M passed, 0 failed".
"""

from __future__ import annotations

import argparse
import collections
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import latchd
import numpy as np
import onnx_reference
from cases import TOLERANCE, Case, expected, random_case

ROOT = Path(__file__).resolve().parents[2]


class Daemon:
    """latchd on free ports, serving models/tiny."""

    def __init__(self, binary: Path, device: str):
        self._log = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [binary, "--model", ROOT / "models/tiny", "--device", device, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0",
             "--log-format", "json", "--kv-tokens", "1024", "--max-sessions", "8", "--max-message-bytes", str(256 << 20)],
            stderr=self._log, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        self.address = self._wait()

    def _wait(self) -> str:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self._process.poll() is None:
            self._log.seek(0)
            for line in self._log.read().splitlines():
                if line.startswith("{") and "grpc" in (record := json.loads(line)):
                    return record["grpc"]
            time.sleep(0.05)
        self._log.seek(0)
        raise SystemExit(f"the daemon does not serve:\n{self._log.read()}")

    def stop(self) -> int:
        self._process.terminate()
        return self._process.wait(30)


def through_daemon(client: latchd.Client, case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Output and the layer's caches; S = 1 goes through the captured step, where nothing must be prefilled with it."""
    a = case.arrays
    hq, hkv = case.heads
    attributes = latchd.Attributes(
        hq, hkv, case.head_size, scale=case.scale, local_window_size=case.window, softcap=case.softcap,
        do_rotary=case.rotary != "off", rotary_interleaved=case.rotary == "interleaved",
        smooth_softmax=case.sink == "smooth",
    )  # fmt: skip
    capacity = case.total + 5
    with client.open_attention(
        attributes, batch=case.batch, capacity=capacity, layers=2, dtype=case.numpy_dtype, packed_qkv=case.packed,
        explicit_positions=case.positions, cos_cache=a.get("cos"), sin_cache=a.get("sin"),
        head_sink=a.get("head_sink"),
    ) as session:  # fmt: skip
        qkv = (a["query"], a["key"], a["value"])
        if case.packed:
            qkv = (np.concatenate(qkv, -1),)
        arguments = dict(
            layer=1, seqlens_k=(a["past"] + case.length - 1).astype(np.int32), position_ids=a.get("position_ids"),
            attention_bias=a.get("bias"),
        )  # fmt: skip
        past = dict(past_key=a["past_key"], past_value=a["past_value"]) if case.past else {}
        if case.length > 1:
            result = session.prefill(*qkv, **arguments, **past, want_present=True)
            return result.output, result.present_key, result.present_value
        if case.past:
            load_past(session, case)
        result = session.step(*qkv, **arguments)
        assert result.variants.captured == (not case.bias), result.variants
        return result.output, *exported(session, case, capacity)


def load_past(session: latchd.AttentionSession, case: Case) -> None:
    """Fills the cache by a call of its own that attends only."""
    a = case.arrays
    hq, hkv = case.heads
    width = hq if not case.packed else hq + 2 * hkv
    # One token that the case overwrites: totals of past + 1 leave the past as it is.
    query = np.zeros((case.batch, 1, width * case.head_size), case.numpy_dtype)
    key = value = None
    if not case.packed:
        key = value = np.zeros((case.batch, 1, hkv * case.head_size), case.numpy_dtype)
    positions = np.zeros((case.batch, 1), np.int64) if case.positions else None
    session.prefill(
        query, key, value, layer=1, seqlens_k=a["past"].astype(np.int32), position_ids=positions,
        past_key=a["past_key"], past_value=a["past_value"],
    )  # fmt: skip


def exported(session: latchd.AttentionSession, case: Case, capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """key.1 and value.1 of the exported file."""
    file = session.export()
    size = int.from_bytes(file[:8], "little")
    header = json.loads(file[8 : 8 + size])

    def tensor(name: str) -> np.ndarray:
        begin, end = header[name]["data_offsets"]
        shape = (case.batch, case.heads[1], capacity, case.head_size)
        return np.frombuffer(file[8 + size + begin : 8 + size + end], case.numpy_dtype).reshape(shape)

    return tensor("key.1"), tensor("value.1")


def difference(got: np.ndarray, want: np.ndarray) -> float:
    """Largest error relative to the output's scale; infinite for NaN."""
    error = np.abs(got.astype(np.float64) - want.astype(np.float64)).max(initial=0.0)
    return float(error / max(1.0, np.abs(want).max(initial=0.0))) if np.isfinite(error) else float("inf")


def check(client: latchd.Client, case: Case, counts: collections.Counter) -> list[str]:
    """What is wrong with the case, nothing when it passes."""
    output, key, value = through_daemon(client, case)
    want, want_key, want_value, totals = expected(case)
    limit = TOLERANCE[case.dtype]
    wrong = []
    for name, got, right in (("output", output, want), ("key", key[:, :, : case.total], want_key),
                             ("value", value[:, :, : case.total], want_value)):  # fmt: skip
        if (error := difference(got, right)) > limit:
            wrong.append(f"{name} differs from the reference by {error:.2e}, more than {limit:.0e}")
    for row, total in enumerate(totals):
        if np.any(key[row, :, total:]) or np.any(value[row, :, total:]):
            wrong.append(f"row {row} is not zero beyond its {total} tokens")
    if onnx_reference.refusal(case) is None:
        counts["onnxruntime"] += 1
        judge = onnx_reference.run(case)
        for name, got in (("the daemon", output), ("the reference", want)):
            if (error := difference(got, judge)) > 2 * limit:
                wrong.append(f"{name} differs from onnxruntime by {error:.2e}, more than {2 * limit:.0e}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--only", type=int, help="run this case alone")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--daemon", type=Path, default=ROOT / "build/cpu-release/bin/latchd")
    args = parser.parse_args()
    print(f"seed {args.seed}, {args.cases} cases, {args.device}", flush=True)
    daemon = Daemon(args.daemon, args.device)
    passed = failed = 0
    counts: collections.Counter = collections.Counter()
    shown = time.monotonic()
    with latchd.Client(daemon.address) as client:
        for number in range(args.cases) if args.only is None else [args.only]:
            case = random_case(np.random.default_rng([args.seed, number]))
            try:
                wrong = check(client, case, counts)
            except latchd.LatchdError as error:
                wrong = [str(error)]
            passed, failed = passed + (not wrong), failed + bool(wrong)
            if wrong:
                print(f"FAILED --seed {args.seed} --only {number}: {case}\n  " + "\n  ".join(wrong), flush=True)
            if time.monotonic() - shown > 10:
                print(f"  {passed + failed} of {args.cases}", flush=True)
                shown = time.monotonic()
    code = daemon.stop()
    print(f"{counts['onnxruntime']} cases were judged by onnxruntime too; the daemon ended with {code}")
    print(f"{passed} passed, {failed} failed")
    return int(failed > 0 or code != 0)


if __name__ == "__main__":
    sys.exit(main())
