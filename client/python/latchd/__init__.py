"""Client of the latchd decode daemon.

>>> with latchd.Client("127.0.0.1:7878") as client:
...     for token in client.generate("Once upon a time", max_tokens=32):
...         print(token.text, end="")
"""

from .attention import AttentionResult, AttentionSession, Attributes, Rope
from .client import Client, Generated
from .errors import LatchdError, ViolationError

__all__ = [
    "AttentionResult", "AttentionSession", "Attributes", "Client", "Generated", "LatchdError",
    "Rope", "ViolationError",
]  # fmt: skip
