"""Random cases over the grid of the operator, and what each should give."""

from __future__ import annotations

from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import reference

DTYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
TOLERANCE = {"f32": 2e-5, "f16": 2e-3, "bf16": 2e-2}  # of the output's scale
GRID = dict(
    dtype=list(DTYPES),
    batch=[1, 2, 3, 5],
    heads=[(1, 1), (4, 4), (8, 2), (9, 3), (32, 8), (6, 1)],
    head_size=[32, 64, 80, 96, 128, 192, 256],
    length=[1, 2, 7, 16, 63, 64, 65, 300],
    past=[0, 1, 17, 127, 500],
    rotary=["off", "half", "interleaved", "partial"],
    packed=[False, True],
    window=[-1, 1, 16, 128],
    softcap=[0.0, 30.0],
    scale=[None, 0.2],
    positions=[False, True],
    sink=["none", "none", "smooth", "heads"],
    bias=[False, False, True],
)


@dataclass
class Case:
    """One call: `past` tokens are in the cache, `length` follow. Arrays hold values of `dtype` exactly."""

    dtype: str
    batch: int
    heads: tuple[int, int]
    head_size: int
    length: int
    past: int
    rotary: str
    packed: bool
    window: int
    softcap: float
    scale: float | None
    positions: bool
    sink: str
    bias: bool
    arrays: dict[str, np.ndarray] = field(default_factory=dict, repr=False)

    @property
    def numpy_dtype(self) -> type:
        return DTYPES[self.dtype]

    @property
    def total(self) -> int:
        return self.past + self.length

    def cost(self) -> int:
        """Multiplications of the float64 reference, to leave out cases of many seconds."""
        return self.batch * self.heads[0] * self.length * self.total * self.head_size


def random_case(random: np.random.Generator) -> Case:
    """A case with fresh data. Rows of a batch have pasts of their own, ending in `past`."""
    while True:
        picked = {name: values[random.integers(len(values))] for name, values in GRID.items()}
        case = Case(**picked)
        if case.rotary == "off":
            case.positions = False
        if case.cost() <= 300_000_000:
            break
    hq, hkv = case.heads
    dtype = case.numpy_dtype

    def values(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(np.float32).astype(dtype)

    a = case.arrays
    b, s, d = case.batch, case.length, case.head_size
    a["past"] = np.array([case.past] + [random.integers(case.past + 1) for _ in range(b - 1)], np.int64)
    a["query"], a["key"], a["value"] = values(b, s, hq * d), values(b, s, hkv * d), values(b, s, hkv * d)
    a["past_key"], a["past_value"] = values(b, hkv, case.past, d), values(b, hkv, case.past, d)
    if case.rotary != "off":
        half = d // 2 if case.rotary != "partial" else max(8, d // 4 // 8 * 8) // 2
        angle = np.outer(np.arange(case.total + 3), 10000.0 ** (-np.arange(half) / half))
        table = dtype if case.dtype == "f16" and random.random() < 0.5 else np.float32
        a["cos"], a["sin"] = np.cos(angle).astype(table), np.sin(angle).astype(table)
    if case.positions:
        a["position_ids"] = random.integers(0, case.total + 3, (b, s))
    if case.sink == "heads":
        a["head_sink"] = random.standard_normal(hq).astype(np.float32)
    if case.bias:
        shape = (random.choice([1, b]), random.choice([1, hq]), s, case.total)
        a["bias"] = random.standard_normal(shape).astype(np.float32).astype(dtype)
    return case


def expected(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Output, present key and value [B, Hkv, total, D] and totals, in float64.

    Keys are rounded to the dtype where the operator stores them; queries are not.
    """
    a = case.arrays
    hq, hkv = case.heads
    b, s, d = case.batch, case.length, case.head_size
    q = a["query"].astype(np.float64).reshape(b, s, hq, d)
    k = a["key"].astype(np.float64).reshape(b, s, hkv, d)
    v = a["value"].astype(np.float64).reshape(b, s, hkv, d)
    if case.rotary != "off":
        positions = a.get("position_ids", a["past"][:, None] + np.arange(s))
        cos, sin = a["cos"].astype(np.float64), a["sin"].astype(np.float64)
        q = reference.rotate(q, cos, sin, positions, case.rotary == "interleaved")
        k = reference.rotate(k, cos, sin, positions, case.rotary == "interleaved")
    k = k.astype(case.numpy_dtype).astype(np.float64)
    keys, values = np.zeros((b, hkv, case.total, d)), np.zeros((b, hkv, case.total, d))
    totals = a["past"] + s
    for row, past in enumerate(a["past"]):
        keys[row, :, :past] = a["past_key"][row, :, :past]
        values[row, :, :past] = a["past_value"][row, :, :past]
        keys[row, :, past : past + s] = k[row].transpose(1, 0, 2)
        values[row, :, past : past + s] = v[row].transpose(1, 0, 2)
    sink = {"none": None, "smooth": np.zeros(hq), "heads": a.get("head_sink")}[case.sink]
    output = reference.attend(
        q, keys, values, totals, scale=case.scale or 1 / np.sqrt(d), window=case.window, softcap=case.softcap,
        bias=None if not case.bias else a["bias"].astype(np.float64), sink=sink,
    )  # fmt: skip
    return output, keys, values, totals
