"""Probes and lifecycle hooks: one handler each, and its rules."""

from __future__ import annotations

import signal
from typing import Final

from trio_kubelet.api import v1
from trio_kubelet.api.validation.formats import header_name, port_name, port_number
from trio_kubelet.api.validation.problems import Problems

_SCHEMES: Final = ("HTTP", "HTTPS")
_REAL_TIME_SIGNALS: Final = (
    {"SIGRTMIN", "SIGRTMAX"}
    | {f"SIGRTMIN+{n}" for n in range(1, 16)}
    | {f"SIGRTMAX-{n}" for n in range(1, 15)}
)
_LINUX_SIGNALS: Final = {
    "SIGABRT", "SIGALRM", "SIGBUS", "SIGCHLD", "SIGCLD", "SIGCONT", "SIGFPE", "SIGHUP", "SIGILL",
    "SIGINT", "SIGIO", "SIGIOT", "SIGKILL", "SIGPIPE", "SIGPOLL", "SIGPROF", "SIGPWR", "SIGQUIT",
    "SIGSEGV", "SIGSTKFLT", "SIGSTOP", "SIGSYS", "SIGTERM", "SIGTRAP", "SIGTSTP", "SIGTTIN", "SIGTTOU",
    "SIGURG", "SIGUSR1", "SIGUSR2", "SIGVTALRM", "SIGWINCH", "SIGXCPU", "SIGXFSZ",
} | _REAL_TIME_SIGNALS  # fmt: skip
_WINDOWS_SIGNALS: Final = {signal.Signals.SIGKILL.name, signal.Signals.SIGTERM.name}


def validate_probes(
    container: v1.Container, here: str, problems: Problems, *, grace_seconds: int | None
) -> None:
    """The three probes of a container or sidecar."""
    for probe, name in (
        (container.liveness_probe, "livenessProbe"),
        (container.readiness_probe, "readinessProbe"),
        (container.startup_probe, "startupProbe"),
    ):
        if probe is None:
            continue
        where = f"{here}.{name}"
        _handler(probe, where, problems, grace_seconds)
        for number, field in (
            (probe.initial_delay_seconds, "initialDelaySeconds"),
            (probe.timeout_seconds, "timeoutSeconds"),
            (probe.period_seconds, "periodSeconds"),
            (probe.success_threshold, "successThreshold"),
            (probe.failure_threshold, "failureThreshold"),
        ):
            problems.not_negative(f"{where}.{field}", number)
        grace = probe.termination_grace_period_seconds
        if grace is not None:
            if grace <= 0:
                problems.invalid(f"{where}.terminationGracePeriodSeconds", grace, "must be greater than 0")
            if name == "readinessProbe":
                why = "must not be set for readinessProbes"
                problems.invalid(f"{where}.terminationGracePeriodSeconds", grace, why)
        if name != "readinessProbe" and probe.success_threshold != 1:
            problems.invalid(f"{where}.successThreshold", probe.success_threshold, "must be 1")


def validate_lifecycle(
    lifecycle: v1.Lifecycle | None,
    pod_os: v1.PodOS | None,
    here: str,
    problems: Problems,
    *,
    grace_seconds: int | None,
) -> None:
    if lifecycle is None:
        return
    for handler, name in ((lifecycle.post_start, "postStart"), (lifecycle.pre_stop, "preStop")):
        if handler is not None:
            _handler(handler, f"{here}.{name}", problems, grace_seconds)
    if lifecycle.stop_signal is not None:
        where, name = f"{here}.stopSignal", lifecycle.stop_signal
        if pod_os is None:
            problems.forbidden(where, "may not be set for containers with empty `spec.os.name`")
        else:
            supported = {"linux": _LINUX_SIGNALS, "windows": _WINDOWS_SIGNALS}.get(pod_os.name)
            if supported is not None and name not in supported:
                problems.unsupported(where, name, sorted(supported))


def _handler(
    handler: v1.Probe | v1.LifecycleHandler, here: str, problems: Problems, grace_seconds: int | None
) -> None:
    """Exactly one of the ways to ask or tell a container something."""
    grpc = handler.grpc if isinstance(handler, v1.Probe) else None
    sleep = handler.sleep if isinstance(handler, v1.LifecycleHandler) else None
    given = [
        name
        for action, name in (
            (handler.exec, "exec"),
            (handler.http_get, "httpGet"),
            (handler.tcp_socket, "tcpSocket"),
            (grpc, "grpc"),
            (sleep, "sleep"),
        )
        if action is not None
    ]
    if not given:
        problems.required(here, "must specify a handler type")
    elif given[0] == "exec" and handler.exec is not None and not handler.exec.command:
        problems.required(f"{here}.exec.command")
    elif given[0] == "httpGet" and handler.http_get is not None:
        _http(handler.http_get, f"{here}.httpGet", problems)
    elif given[0] == "tcpSocket" and handler.tcp_socket is not None:
        _port(handler.tcp_socket.port, f"{here}.tcpSocket.port", problems)
    elif given[0] == "grpc" and grpc is not None:
        _port(grpc.port, f"{here}.grpc.port", problems)
    elif given[0] == "sleep" and sleep is not None:
        limit = grace_seconds if grace_seconds is not None else sleep.seconds
        if not 0 <= sleep.seconds <= limit:
            why = f"must be non-negative and less than terminationGracePeriodSeconds ({limit})"
            problems.invalid(f"{here}.sleep", sleep.seconds, why)
    for name in given[1:]:
        problems.forbidden(f"{here}.{name}", "may not specify more than 1 handler type")


def _http(action: v1.HTTPGetAction, here: str, problems: Problems) -> None:
    if not action.path:
        problems.required(f"{here}.path")
    _port(action.port, f"{here}.port", problems)
    if action.scheme not in _SCHEMES:
        problems.unsupported(f"{here}.scheme", action.scheme, _SCHEMES)
    for header in action.http_headers or ():
        problems.check(f"{here}.httpHeaders", header.name, header_name)


def _port(port: int | str, here: str, problems: Problems) -> None:
    if isinstance(port, str):
        problems.check(here, port, port_name)
    else:
        problems.check(here, port, port_number)
