"""AttentionService: GroupQueryAttention with the KV cache on the daemon."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
import numpy as np

from .errors import ViolationError, from_code, from_rpc
from .tensors import element_type, to_array, to_tensor
from .v1 import attention_pb2 as pb
from .v1 import common_pb2

if TYPE_CHECKING:
    from .client import Client

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Attributes:
    """Attributes of com.microsoft::GroupQueryAttention, by its own names."""

    num_heads: int
    kv_num_heads: int
    head_size: int
    scale: float | None = None
    local_window_size: int = -1
    softcap: float = 0.0
    do_rotary: bool = False
    rotary_interleaved: bool = False
    smooth_softmax: bool = False


@dataclass(frozen=True)
class Rope:
    """A rotary table that the daemon makes itself: angles position / scaling * theta^(-2i/rotary_dim)."""

    theta: float = 10000.0
    rotary_dim: int = 0
    scaling: float = 0.0
    rows: int = 0


@dataclass(frozen=True)
class AttentionResult:
    """One call's outcome.

    Attributes:
        output: [batch, S, num_heads * head_size]; rows that violated an invariant are zero.
        present_key: [batch, kv_num_heads, capacity, head_size] when asked for.
        variants: which kernels ran, and whether from a captured graph.
        violation: set when this step poisoned the session or met it poisoned.
    """

    output: np.ndarray | None
    present_key: np.ndarray | None
    present_value: np.ndarray | None
    variants: pb.AttentionResponse.Variants
    timings: common_pb2.Timings
    violation: common_pb2.InvariantViolation | None


def _result(response: pb.AttentionResponse) -> AttentionResult:
    def array(name: str) -> np.ndarray | None:
        return to_array(getattr(response, name)) if response.HasField(name) else None

    return AttentionResult(
        array("output"), array("present_key"), array("present_value"), response.variants, response.timings,
        response.violation if response.HasField("violation") else None,
    )  # fmt: skip


class AttentionSession:
    """A fixed batch of sequences, with one cache for each layer. Closes itself as a context manager.

    Not thread-safe: steps share one stream.
    """

    def __init__(self, client: Client, info: pb.AttentionSession):
        self._client = client
        self.info = info
        self.id: int = info.session_id
        self._requests: queue.SimpleQueue[pb.AttentionRequest | None] = queue.SimpleQueue()
        self._stream: grpc.Call | None = None

    @staticmethod
    def open_request(
        attributes: Attributes, *, batch: int, capacity: int, layers: int = 1, dtype: np.dtype | type = np.float32,
        packed_qkv: bool = False, explicit_positions: bool = False, cos_cache: np.ndarray | None = None,
        sin_cache: np.ndarray | None = None, rope: Rope | None = None, head_sink: np.ndarray | None = None,
        backend: int = pb.OpenAttentionSessionRequest.BACKEND_UNSPECIFIED, disable_prep_fusion: bool = False,
    ) -> pb.OpenAttentionSessionRequest:  # fmt: skip
        """The message of Client.open_attention, whose arguments these are."""
        request = pb.OpenAttentionSessionRequest(
            attributes=pb.AttentionAttributes(**vars(attributes)), dtype=element_type(np.dtype(dtype)), batch=batch,
            layers=layers, capacity_tokens=capacity, packed_qkv=packed_qkv, explicit_positions=explicit_positions,
            backend=backend, disable_prep_fusion=disable_prep_fusion,
        )  # fmt: skip
        for name, array in (("cos_cache", cos_cache), ("sin_cache", sin_cache), ("head_sink", head_sink)):
            if array is not None:
                getattr(request, name).CopyFrom(to_tensor(array))
        if rope is not None:
            request.rope.CopyFrom(pb.OpenAttentionSessionRequest.Rope(**vars(rope)))
        return request

    def request(
        self, query: np.ndarray, key: np.ndarray | None = None, value: np.ndarray | None = None, *,
        seqlens_k: np.ndarray, layer: int = 0, position_ids: np.ndarray | None = None,
        attention_bias: np.ndarray | None = None, past_key: np.ndarray | None = None,
        past_value: np.ndarray | None = None, total_sequence_length: int | None = None, want_present: bool = False,
    ) -> pb.AttentionRequest:  # fmt: skip
        """The message of one call.

        Args:
            query: [batch, S, num_heads * head_size], or packed with key and value.
            key, value: [batch, S, kv_num_heads * head_size], or S = 0 to attend only.
            seqlens_k: int32 [batch], the valid length after the call minus 1.
            position_ids: int64 [batch, S].
            attention_bias: [batch or 1, num_heads or 1, S, at least the longest total].
            past_key, past_value: [batch, kv_num_heads, past, head_size], prefill only.
        """
        message = pb.AttentionRequest(session_id=self.id, layer=layer, want_present=want_present)
        arrays = dict(
            query=query, key=key, value=value, seqlens_k=seqlens_k, position_ids=position_ids,
            attention_bias=attention_bias, past_key=past_key, past_value=past_value,
        )  # fmt: skip
        for name, array in arrays.items():
            if array is not None:
                getattr(message, name).CopyFrom(to_tensor(array))
        if total_sequence_length is not None:
            message.total_sequence_length = total_sequence_length
        return message

    def prefill(self, *arrays: np.ndarray, **arguments: object) -> AttentionResult:
        """Any S, eager. Arguments as `request`. Raises LatchdError; a refusal poisons nothing."""
        return _result(self._client.call(self._client.attention.Prefill, self.request(*arrays, **arguments)))

    def step(self, *arrays: np.ndarray, **arguments: object) -> AttentionResult:
        """One query token for each row, captured. Arguments as `request`.

        Raises ViolationError when an invariant was violated, LatchdError when the step was refused.
        """
        result = self.try_step(*arrays, **arguments)
        if result.violation is not None:
            raise ViolationError(result.violation)
        return result

    def try_step(self, *arrays: np.ndarray, **arguments: object) -> AttentionResult:
        """As `step`, but returns a violation with the output of the rows that did not violate."""
        if self._stream is None:
            self._stream = self._client.attention.Step(iter(self._requests.get, None))
        self._requests.put(self.request(*arrays, **arguments))
        try:
            response = next(self._stream)
        except grpc.RpcError as error:
            self._stream = None
            raise from_rpc(error) from None
        if response.HasField("error"):
            raise from_code(response.error.code, response.error.message)
        return _result(response)

    def refresh(self) -> pb.AttentionSession:
        """The session as the daemon sees it now: state, lengths, latch."""
        self.info = self._client.call(
            self._client.attention.GetSession, pb.GetAttentionSessionRequest(session_id=self.id)
        )
        return self.info

    def clear_latch(self) -> None:
        """Goes on from the last good length."""
        self.info = self._client.call(
            self._client.attention.ClearLatch, pb.ClearAttentionLatchRequest(session_id=self.id)
        )

    def truncate(self, length: int) -> None:
        """Forgets tokens from `length` on, and clears the latch."""
        self.info = self._client.call(
            self._client.attention.Truncate, pb.TruncateAttentionRequest(session_id=self.id, length=length)
        )

    def fork(self) -> AttentionSession:
        """A new session with a copy of every cache."""
        info = self._client.call(self._client.attention.Fork, pb.ForkAttentionRequest(session_id=self.id))
        return AttentionSession(self._client, info)

    def export(self) -> bytes:
        """The caches as a safetensors file."""
        try:
            chunks = self._client.attention.Export(pb.ExportAttentionRequest(session_id=self.id))
            return b"".join(message.chunk for message in chunks)
        except grpc.RpcError as error:
            raise from_rpc(error) from None

    def import_(self, file: bytes) -> None:
        """Replaces the caches by an exported file."""

        def messages() -> Iterator[pb.ImportAttentionRequest]:
            for at in range(0, max(len(file), 1), _CHUNK):
                yield pb.ImportAttentionRequest(session_id=self.id, chunk=file[at : at + _CHUNK])

        self.info = self._client.call(self._client.attention.Import, messages())

    def close(self) -> None:
        """Frees the session. Idempotent."""
        self._requests.put(None)
        self._stream = None
        self._client.call(
            self._client.attention.CloseSession, pb.CloseAttentionSessionRequest(session_id=self.id)
        )

    def __enter__(self) -> AttentionSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
