"""numpy arrays as the daemon's Tensor messages, and back. bfloat16 is ml_dtypes.bfloat16."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from .v1 import attention_pb2 as pb

_TYPES = {
    np.dtype(np.float32): pb.ELEMENT_TYPE_F32,
    np.dtype(np.float16): pb.ELEMENT_TYPE_F16,
    np.dtype(ml_dtypes.bfloat16): pb.ELEMENT_TYPE_BF16,
    np.dtype(np.int32): pb.ELEMENT_TYPE_I32,
    np.dtype(np.int64): pb.ELEMENT_TYPE_I64,
}
_DTYPES = {code: dtype for dtype, code in _TYPES.items()}


def element_type(dtype: np.dtype) -> int:
    """The wire's name of a numpy dtype. TypeError for one that the daemon does not know."""
    code = _TYPES.get(np.dtype(dtype))
    if code is None:
        raise TypeError(f"dtype: expected one of {[str(t) for t in _TYPES]}, got {dtype}")
    return code


def to_tensor(array: np.ndarray) -> pb.Tensor:
    """Row-major, little-endian."""
    array = np.ascontiguousarray(array)
    return pb.Tensor(dtype=element_type(array.dtype), shape=array.shape, data=array.tobytes())


def to_array(tensor: pb.Tensor) -> np.ndarray:
    """A read-only array over the message's bytes."""
    return np.frombuffer(tensor.data, _DTYPES[tensor.dtype]).reshape(tuple(tensor.shape))
