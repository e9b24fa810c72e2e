"""What a call may raise. Every error of the daemon names the field, what was expected and what came."""

from __future__ import annotations

import grpc
from grpc_status import rpc_status

from .v1 import common_pb2


class LatchdError(Exception):
    """The daemon refused or failed a call.

    Attributes:
        code: the gRPC status, for example grpc.StatusCode.INVALID_ARGUMENT.
    """

    def __init__(self, code: grpc.StatusCode, message: str):
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message


class ViolationError(LatchdError):
    """A device invariant was violated: the session is poisoned until its latch is cleared.

    Attributes:
        violation: mask, names, layer, row, step, value and limit.
    """

    def __init__(self, violation: common_pb2.InvariantViolation):
        super().__init__(grpc.StatusCode.FAILED_PRECONDITION, violation.message)
        self.violation = violation

    @property
    def invariants(self) -> set[str]:
        """Names of the violated invariants, for example {"PRESENT_CAPACITY"}."""
        prefix = "INVARIANT_"
        return {common_pb2.Invariant.Name(i).removeprefix(prefix) for i in self.violation.invariants}


def from_rpc(error: grpc.RpcError) -> LatchdError:
    """The exception for a failed call, with the violation that its details may carry."""
    try:
        status = rpc_status.from_call(error)
    except ValueError:
        status = None
    for detail in status.details if status is not None else ():
        violation = common_pb2.InvariantViolation()
        if detail.Is(violation.DESCRIPTOR) and detail.Unpack(violation):
            return ViolationError(violation)
    return LatchdError(error.code(), error.details() or "")


def from_code(code: int, message: str) -> LatchdError:
    """The exception for an error that came in-band on a stream."""
    for status in grpc.StatusCode:
        if status.value[0] == code:
            return LatchdError(status, message)
    return LatchdError(grpc.StatusCode.UNKNOWN, message)
