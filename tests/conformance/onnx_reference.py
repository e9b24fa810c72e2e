"""onnxruntime's CPU GroupQueryAttention on a case, where it can judge it."""

from __future__ import annotations

import numpy as np
import onnxruntime
from cases import Case
from onnx import TensorProto, helper


def refusal(case: Case) -> str | None:
    """Why onnxruntime cannot judge the case; None when it can."""
    if case.dtype == "bf16":
        return "no bfloat16 kernel"
    if case.head_size % 8 != 0:
        return "head sizes are multiples of 8"
    if case.length > 1 and case.batch > 1 and case.past > 0:
        return "no S > 1 with a past and B > 1"
    if case.rotary == "partial":
        return "rotary_dim is the head's, or a multiple of 16"
    if case.positions and case.length > 1:
        return "of a row's position ids it reads the first alone (the operator's text says each)"
    return None


def run(case: Case) -> np.ndarray:
    """The output [B, S, Hq * D]."""
    a = case.arrays
    hq, hkv = case.heads
    kind = TensorProto.FLOAT if case.dtype == "f32" else TensorProto.FLOAT16
    dtype = np.float32 if case.dtype == "f32" else np.float16
    totals = a["past"] + case.length
    feeds = {
        "query": a["query"], "key": a["key"], "value": a["value"], "past_key": a["past_key"],
        "past_value": a["past_value"], "seqlens_k": (totals - 1).astype(np.int32),
        "total_sequence_length": np.array(case.total, np.int32),
    }  # fmt: skip
    if case.packed:
        feeds["query"] = np.concatenate([a["query"], a["key"], a["value"]], -1)
        del feeds["key"], feeds["value"]
    if case.rotary != "off":
        feeds["cos_cache"], feeds["sin_cache"] = a["cos"].astype(dtype), a["sin"].astype(dtype)
    if case.positions:
        feeds["position_ids"] = a["position_ids"]
    if case.bias:
        feeds["attention_bias"] = a["bias"]
    if case.sink == "heads":
        feeds["head_sink"] = a["head_sink"].astype(dtype)
    names = [
        "query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length", "cos_cache",
        "sin_cache", "position_ids", "attention_bias", "head_sink",
    ]  # fmt: skip
    integers = {np.dtype(np.int32): TensorProto.INT32, np.dtype(np.int64): TensorProto.INT64}
    inputs = [
        helper.make_tensor_value_info(n, integers.get(feeds[n].dtype, kind), list(feeds[n].shape))
        for n in names if n in feeds
    ]  # fmt: skip
    node = helper.make_node(
        "GroupQueryAttention", [n if n in feeds else "" for n in names], ["output", "present_key", "present_value"],
        domain="com.microsoft", num_heads=hq, kv_num_heads=hkv, scale=case.scale or 0.0,
        do_rotary=int(case.rotary != "off"), rotary_interleaved=int(case.rotary == "interleaved"),
        local_window_size=case.window, softcap=case.softcap, smooth_softmax=int(case.sink == "smooth"),
    )  # fmt: skip
    shape = [case.batch, hkv, case.total, case.head_size]
    outputs = [
        helper.make_tensor_value_info("output", kind, [case.batch, case.length, hq * case.head_size]),
        helper.make_tensor_value_info("present_key", kind, shape),
        helper.make_tensor_value_info("present_value", kind, shape),
    ]
    model = helper.make_model(
        helper.make_graph([node], "gqa", inputs, outputs),
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)], ir_version=9,
    )  # fmt: skip
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    return session.run(["output"], feeds)[0]
