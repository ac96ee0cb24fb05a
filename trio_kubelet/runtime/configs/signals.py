"""Stop signals: their names in pods and their numbers in the CRI."""

from __future__ import annotations

from trio_kubelet.cri.proto import api_pb2 as cri

_NAMES = frozenset(cri.Signal.keys())


def signal_from_name(name: str) -> cri.Signal.ValueType:
    """`SIGTERM`, `SIGRTMIN+3`… as the CRI has it; RUNTIME_DEFAULT for a name it does not know."""
    key = name.replace("+", "PLUS").replace("-", "MINUS")
    return cri.Signal.Value(key) if key in _NAMES else cri.RUNTIME_DEFAULT


def signal_name(signal: cri.Signal.ValueType) -> str:
    """The name pods use, "" for the runtime's default."""
    if signal == cri.RUNTIME_DEFAULT:
        return ""
    return cri.Signal.Name(signal).replace("PLUS", "+").replace("MINUS", "-")
