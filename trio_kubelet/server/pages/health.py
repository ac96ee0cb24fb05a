"""Health answers in the words every Kubernetes component uses (apiserver library, `healthz`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from trio_kubelet.server.http.messages import NOSNIFF, Hijack, Request, Response, not_found, text
from trio_kubelet.server.http.metrics import HealthCounts
from trio_kubelet.server.http.router import Router

Check = Callable[[], str | None]
"""None when well, else the reason (logged by who asks, never shown: it may hold secrets)."""


def add_health(router: Router, checks: Mapping[str, Check], counts: HealthCounts) -> None:
    """`/healthz` and, for each check, `/healthz/NAME`."""

    async def health(request: Request) -> Response | Hijack:
        return answer_health(request, checks, counts)

    for path in ("/healthz", *(f"/healthz/{name}" for name in checks)):
        router.handle(path, health)


def health_text(results: Mapping[str, str | None], excluded: set[str], verbose: bool) -> tuple[int, str]:
    """Status and body of `/healthz`."""
    lines, failed = [], False
    for name, reason in results.items():
        if name in excluded:
            lines.append(f"[+]{name} excluded: ok\n")
        elif reason is None:
            lines.append(f"[+]{name} ok\n")
        else:
            failed = True
            lines.append(f"[-]{name} failed: reason withheld\n")
    unknown = excluded - set(results)
    if unknown:
        lines.append(f"warn: some health checks cannot be excluded: no matches for {_quoted(unknown)}\n")
    if failed:
        return 500, "".join(lines) + "healthz check failed\n"
    if not verbose:
        return 200, "ok"
    return 200, "".join(lines) + "healthz check passed\n"


def _quoted(names: set[str]) -> str:
    return ",".join(f'"{name}"' for name in sorted(names))


def answer_health(request: Request, checks: Mapping[str, Check], counts: HealthCounts) -> Response:
    """Answers `/healthz` and `/healthz/NAME`."""
    wanted = request.path.removeprefix("/healthz").strip("/")
    if wanted:
        if wanted not in checks:
            return not_found()
        reason = checks[wanted]()
        if reason is None:
            return text(200, "ok")
        return text(500, f"internal server error: {reason}\n", NOSNIFF)
    excluded = set(request.query.get("exclude", []))
    results = {name: None if name in excluded else check() for name, check in checks.items()}
    for name in results.keys() - excluded:
        counts.count(name, results[name] is None)
    status, body = health_text(results, excluded, "verbose" in request.query)
    return text(status, body, NOSNIFF)
