"""One connection to a daemon, and what DecodeService offers over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from .attention import AttentionSession, Attributes
from .errors import ViolationError, from_rpc
from .v1 import attention_pb2 as attention
from .v1 import attention_pb2_grpc as attention_grpc
from .v1 import decode_pb2 as decode
from .v1 import decode_pb2_grpc as decode_grpc


@dataclass(frozen=True)
class Generated:
    """One generated token: `text` is what became certain with it, possibly empty.

    The last one may have token_id -1 and the text that was held back as a possible stop string.
    """

    token_id: int
    text: str
    logprob: float


class Client:
    """A connection. Thread-safe; sessions made from it are not.

    Args:
        address: HOST:PORT of the daemon's gRPC service.
        root_certificates: PEM text; with it the connection is TLS.
        max_message_bytes: of one message, either way.
    """

    def __init__(
        self, address: str = "127.0.0.1:7878", *, root_certificates: bytes | None = None,
        max_message_bytes: int = 256 << 20, timeout: float | None = None,
    ):  # fmt: skip
        options = [
            ("grpc.max_receive_message_length", max_message_bytes),
            ("grpc.max_send_message_length", max_message_bytes),
        ]
        if root_certificates is None:
            self._channel = grpc.insecure_channel(address, options)
        else:
            credentials = grpc.ssl_channel_credentials(root_certificates)
            self._channel = grpc.secure_channel(address, credentials, options)
        self._timeout = timeout
        self.decode = decode_grpc.DecodeServiceStub(self._channel)
        self.attention = attention_grpc.AttentionServiceStub(self._channel)

    def call(self, method: Callable[..., Any], request: Any) -> Any:
        """One call of a stub; raises LatchdError instead of grpc.RpcError."""
        try:
            return method(request, timeout=self._timeout)
        except grpc.RpcError as error:
            raise from_rpc(error) from None

    def model(self) -> decode.GetModelResponse:
        """What the daemon serves."""
        return self.call(self.decode.GetModel, decode.GetModelRequest())

    def generate(
        self, prompt: str | Sequence[int], *, max_tokens: int = 128, stop: Sequence[str] = (), **sampling: Any
    ) -> Iterator[Generated]:
        """Streams the tokens that follow `prompt`. Keyword arguments are the fields of Sampling.

        Closing the iterator cancels the call. Raises LatchdError or ViolationError.
        """
        request = decode.GenerateRequest(max_tokens=max_tokens, stop=stop)
        if isinstance(prompt, str):
            request.text = prompt
        else:
            request.tokens.ids.extend(prompt)
        request.sampling.CopyFrom(decode.Sampling(**sampling))
        call = self.decode.Generate(request, timeout=self._timeout)
        try:
            for message in call:
                if message.HasField("token"):
                    next_token = message.token.next
                    yield Generated(next_token.token_id, message.token.text, next_token.logprob)
                    continue
                if message.finish.text:
                    yield Generated(-1, message.finish.text, 0.0)
                if message.finish.HasField("violation"):
                    raise ViolationError(message.finish.violation)
        except grpc.RpcError as error:
            raise from_rpc(error) from None
        finally:
            call.cancel()

    def capabilities(self) -> attention.GetCapabilitiesResponse:
        """What AttentionService supports."""
        return self.call(self.attention.GetCapabilities, attention.GetCapabilitiesRequest())

    def open_attention(self, attributes: Attributes, **arguments: Any) -> AttentionSession:
        """Opens a session: arguments as AttentionSession.open_request. Raises LatchdError."""
        request = AttentionSession.open_request(attributes, **arguments)
        return AttentionSession(self, self.call(self.attention.OpenSession, request))

    def close(self) -> None:
        """Ends every call."""
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
