"""GroupQueryAttention in float64 numpy: the written specification that every backend is compared with.

Order of operations: rotate, append, scale, softcap, bias, mask, softmax with its sink, weigh.
"""

from __future__ import annotations

import numpy as np


def rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, positions: np.ndarray, interleaved: bool) -> np.ndarray:
    """x [B, S, H, D] by tables [rows, rotary_dim / 2] at positions [B, S]; the tail passes through."""
    half = cos.shape[1]
    out = x.copy()
    c, s = cos[positions][:, :, None], sin[positions][:, :, None]
    first = slice(0, 2 * half, 2) if interleaved else slice(0, half)
    second = slice(1, 2 * half, 2) if interleaved else slice(half, 2 * half)
    a, b = x[..., first], x[..., second]
    out[..., first] = c * a - s * b
    out[..., second] = s * a + c * b
    return out


def attend(
    q: np.ndarray, keys: np.ndarray, values: np.ndarray, totals: np.ndarray, *, scale: float, window: int = -1,
    softcap: float = 0.0, bias: np.ndarray | None = None, sink: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """q [B, S, Hq, D]; caches [B, Hkv, capacity, D]; row b attends to its first totals[b] tokens.

    The last query of a row sees all of them, each earlier query one less. bias [B|1, Hq|1, S, >= total];
    sink [Hq] adds exp(sink) to each softmax's denominator. Returns [B, S, Hq * D].
    """
    batch, length, heads, dim = q.shape
    group = heads // keys.shape[1]
    out = np.zeros((batch, length, heads, dim))
    for b in range(batch):
        total = int(totals[b])
        position = np.arange(total - length, total)[:, None]
        key = np.arange(total)[None, :]
        visible = key <= position
        if window > 0:
            visible &= key > position - window
        for h in range(heads):
            k, v = keys[b, h // group, :total], values[b, h // group, :total]
            score = scale * (q[b, :, h] @ k.T)
            if softcap > 0:
                score = softcap * np.tanh(score / softcap)
            if bias is not None:
                score = score + bias[b % bias.shape[0], h % bias.shape[1], :, :total]
            score = np.where(visible, score, -np.inf)
            top = score.max(-1, keepdims=True)
            weight = np.exp(score - top)
            total_weight = weight.sum(-1, keepdims=True)
            if sink is not None:
                total_weight = total_weight + np.exp(sink[h] - top)
            out[b, :, h] = weight / total_weight @ v
    return out.reshape(batch, length, heads * dim)
