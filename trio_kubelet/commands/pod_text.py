"""All about a pod as text, as `kubectl describe pod` prints it, and its story. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trio_kubelet.api.timestamps import rfc3339
from trio_kubelet.commands.jsonpath.parse import parse
from trio_kubelet.commands.jsonpath.steps import JSONPathError
from trio_kubelet.commands.jsonpath.template import as_json, plain
from trio_kubelet.commands.render import Below, aligned, annotation_lines, fields, indented, pairs
from trio_kubelet.commands.table import human_duration, parse_time_ns, pod_state

Json = Mapping[str, Any]
Fields = list[tuple[str, str | Sequence[str] | Below]]

_NONE = "<none>"
_SECOND = 1_000_000_000
_UNLIMITED = ("limits.cpu", "limits.memory")
_ADDRESSES = ("status.hostIPs", "status.podIPs")


def describe_pod(pod: Json, events: Sequence[str], story: Sequence[Json], now_ns: int) -> list[str]:
    """What `kubectl describe pod` would say, its events as lines, and the agent's own decisions."""
    spec, status = pod.get("spec", {}), pod.get("status", {})
    resources = Below(fields(_resources(spec.get("resources") or {})))
    lines = fields([*_head(pod, now_ns), ("Resources", resources)])
    for title, specs, statuses in (
        ("Init Containers", "initContainers", "initContainerStatuses"),
        ("Containers", "containers", "containerStatuses"),
        ("Ephemeral Containers", "ephemeralContainers", "ephemeralContainerStatuses"),
    ):
        found = {c["name"]: c for c in status.get(statuses) or []}
        if spec.get(specs):
            lines.append(f"{title}:")
            for container in spec[specs]:
                lines += _container(pod, container, found.get(container["name"], {}))
    conditions = status.get("conditions") or []
    if gates := spec.get("readinessGates"):
        known = {c["type"]: c["status"] for c in conditions}
        rows = [[gate["conditionType"], known.get(gate["conditionType"], _NONE)] for gate in gates]
        lines += ["Readiness Gates:", *indented(aligned([["Type", "Status"], *rows]))]
    if conditions:
        rows = [["Type", "Status", "Reason"]]
        rows += [[c["type"], c["status"], c.get("reason", "")] for c in conditions]
        lines += ["Conditions:", *indented(aligned(rows))]
    lines += fields([("Volumes", Below(_volumes(spec["volumes"])) if spec.get("volumes") else _NONE)])
    lines += fields(
        [
            ("QoS Class", status.get("qosClass") or _NONE),
            ("Node-Selectors", pairs(spec.get("nodeSelector"))),
            ("Tolerations", list(map(_toleration, _by(spec.get("tolerations"), "key"))) or _NONE),
            (
                "Topology Spread Constraints",
                list(map(_spread, _by(spec.get("topologySpreadConstraints"), "topologyKey"))),
            ),
        ]
    )
    return [*lines, *events, *_story(story, now_ns)]


def _head(pod: Json, now_ns: int) -> Fields:
    metadata, spec, status = pod["metadata"], pod.get("spec", {}), pod.get("status", {})
    node = "/".join(filter(None, (spec.get("nodeName"), status.get("hostIP"))))
    owners = [owner for owner in metadata.get("ownerReferences") or () if owner.get("controller")]
    grace = metadata.get("deletionGracePeriodSeconds")
    return [
        ("Name", metadata["name"]),
        ("Namespace", metadata.get("namespace", "")),
        ("UID", metadata.get("uid", "")),
        ("Priority", "" if spec.get("priority") is None else str(spec["priority"])),
        ("Priority Class Name", spec.get("priorityClassName", "")),
        ("Runtime Class Name", spec.get("runtimeClassName") or ""),
        ("Service Account", spec.get("serviceAccountName", "")),
        ("Node", node or _NONE),
        ("Start Time", status.get("startTime") or _NONE),
        ("Labels", pairs(metadata.get("labels"))),
        ("Annotations", annotation_lines(metadata.get("annotations"))),
        ("Status", _status(pod, now_ns)),
        ("Termination Grace Period", "" if grace is None else f"{grace}s"),
        ("Reason", status.get("reason", "")),
        ("Message", status.get("message", "")),
        *_seccomp(spec),
        ("IP", status.get("podIP") or _NONE),
        ("IPs", [each["ip"] for each in status.get("podIPs") or ()]),
        ("Controlled By", "".join(f"{owner['kind']}/{owner['name']}" for owner in owners[:1])),
        ("NominatedNodeName", status.get("nominatedNodeName", "")),
    ]


def _status(pod: Json, now_ns: int) -> str:
    """The word of `get pods`, and since when the time is over that the pod had to end."""
    state, ends_ns = pod_state(pod), parse_time_ns(pod["metadata"].get("deletionTimestamp"))
    if state != "Terminating" or ends_ns is None:
        return state
    return f"{state} (lasts {human_duration((now_ns - ends_ns) / _SECOND)})"


def _seccomp(has_context: Json) -> Fields:
    profile = (has_context.get("securityContext") or {}).get("seccompProfile") or {}
    return [
        ("SeccompProfile", profile.get("type", "")),
        ("LocalhostProfile", profile.get("localhostProfile") or ""),
    ]


def _container(pod: Json, container: Json, status: Json) -> list[str]:
    ports = container.get("ports") or []
    found: Fields = [
        ("Container ID", status.get("containerID") or _NONE),
        ("Image", container.get("image", "")),
        ("Image ID", status.get("imageID") or _NONE),
        ("Port" if len(ports) < 2 else "Ports", _ports(ports, "containerPort")),
        ("Host Port" if len(ports) < 2 else "Host Ports", _ports(ports, "hostPort")),
        *_seccomp(container),
        ("Command", Below(container.get("command") or [])),
        ("Args", Below(container.get("args") or [])),
        *_state("State", status.get("state") or {}),
        *(_state("Last State", status["lastState"]) if status.get("lastState") else []),
        ("Ready", str(bool(status.get("ready")))),
        ("Restart Count", str(status.get("restartCount", 0))),
        *_resources(container.get("resources") or {}),
        ("Liveness", _probe(container.get("livenessProbe"))),
        ("Readiness", _probe(container.get("readinessProbe"))),
        ("Startup", _probe(container.get("startupProbe"))),
        ("Environment Variables from", Below(list(map(_source, container.get("envFrom") or [])))),
        (
            "Environment",
            _below([(each["name"], _variable(pod, container, each)) for each in container.get("env") or []]),
        ),
        ("Mounts", _below_or_none(map(_mount, container.get("volumeMounts") or []))),
        (
            "Devices",
            Below(
                [
                    f"{d['devicePath']} from {d['name']}"
                    for d in _by(container.get("volumeDevices"), "devicePath")
                ]
            ),
        ),
    ]
    return [f"  {container['name']}:", *indented(indented(fields(found)))]


def _below(named: Fields) -> Below | str:
    return Below(fields(named)) if named else _NONE


def _below_or_none(lines: Iterable[str]) -> Below | str:
    found = sorted(lines)
    return Below(found) if found else _NONE


def _ports(ports: Sequence[Json], which: str) -> str:
    shown = []
    for port in ports:
        name = f" ({port['name']})" if port.get("name") else ""
        shown.append(f"{port.get(which, 0)}/{port.get('protocol', 'TCP')}{name}")
    return ", ".join(shown) or _NONE


def _state(title: str, state: Json) -> Fields:
    for kind in ("running", "terminated", "waiting"):
        if kind in state:
            details = state[kind]
            found: Fields = [(title, kind.capitalize())]
            for key, name in (
                ("reason", "  Reason"),
                ("message", "  Message"),
                ("exitCode", "  Exit Code"),
                ("signal", "  Signal"),
                ("startedAt", "  Started"),
                ("finishedAt", "  Finished"),
            ):
                if details.get(key) is not None:
                    found.append((name, str(details[key])))
            return found
    return [(title, "Waiting")]


def _resources(resources: Json) -> Fields:
    return [
        (title, Below(fields(sorted(amounts.items()))))
        for title, amounts in (("Limits", resources.get("limits")), ("Requests", resources.get("requests")))
        if amounts
    ]


def _probe(probe: Json | None) -> str:
    if not probe:
        return ""
    if "exec" in probe:
        what = f"exec [{' '.join(probe['exec'].get('command') or [])}]"
    elif "httpGet" in probe:
        get = probe["httpGet"]
        host = get.get("host", "")
        address = f"{f'[{host}]' if ':' in host else host}:{get['port']}"
        path = get.get("path", "")
        slash = "/" if path and not path.startswith("/") else ""
        what = f"http-get {get.get('scheme', 'HTTP').lower()}://{address}{slash}{path}"
    elif "tcpSocket" in probe:
        what = f"tcp-socket {probe['tcpSocket'].get('host', '')}:{probe['tcpSocket']['port']}"
    elif "grpc" in probe:
        what = f"grpc <pod>:{probe['grpc'].get('port', '')} {probe['grpc'].get('service') or ''}".rstrip()
    else:
        what = "unknown"
    return (
        f"{what} delay={probe.get('initialDelaySeconds', 0)}s timeout={probe.get('timeoutSeconds', 1)}s "
        f"period={probe.get('periodSeconds', 10)}s #success={probe.get('successThreshold', 1)} "
        f"#failure={probe.get('failureThreshold', 3)}"
    )


def _source(source: Json) -> str:
    kind, ref = _only({key: value for key, value in source.items() if key != "prefix"})
    prefix = f" with prefix {source['prefix']!r}" if source.get("prefix") else ""
    return f"{ref.get('name', '')}  {_capital(kind.removesuffix('Ref'))}{prefix}{_optional(ref)}"


def _variable(pod: Json, container: Json, variable: Json) -> str:
    """Where a variable's value comes from. One that stands in the pod may be a password, and is not shown."""
    kind, ref = _only(variable.get("valueFrom") or {})
    if kind == "fieldRef":
        return f"{_of_pod(pod, ref['fieldPath'])} ({ref.get('apiVersion', 'v1')}:{ref['fieldPath']})".lstrip()
    if kind == "resourceFieldRef":
        return f"{_of_container(container, ref)} ({ref.get('resource', '')})".lstrip()
    if kind in ("secretKeyRef", "configMapKeyRef"):
        what = "secret" if kind == "secretKeyRef" else "config map"
        return f"<key {ref.get('key', '')!r} of {what} {ref.get('name', '')!r}>{_optional(ref)}"
    return f"<{_capital(kind)}>" if kind else "<set>" if variable.get("value") else "<empty>"


def _only(one_of: Json) -> tuple[str, Json]:
    """The field of several that is set, and its value."""
    return next(((kind, value or {}) for kind, value in one_of.items()), ("", {}))


def _of_pod(pod: Json, path: str) -> str:
    base, bracket, key = path.partition("['")
    if bracket:  # a key, in which dots mean nothing
        return str(
            (pod["metadata"].get(base.removeprefix("metadata.")) or {}).get(key.removesuffix("']"), "")
        )
    if path in _ADDRESSES:
        listed = pod.get("status", {}).get(path.removeprefix("status."))
        return ",".join(each["ip"] for each in listed or ())
    try:
        return parse(f"{{.{path}}}").text(pod)
    except JSONPathError:
        return ""


def _of_container(container: Json, ref: Json) -> str:
    """A request or limit of the container itself: what it may use without a limit only the node knows."""
    import msgspec

    from trio_kubelet.api import v1  # which costs time, and few variables ask for this
    from trio_kubelet.podinfo.doors import ConfigError
    from trio_kubelet.podinfo.downward import container_resource

    selector = msgspec.convert(ref, v1.ResourceFieldSelector, strict=False)
    own = msgspec.convert(
        {"name": "", "resources": container.get("resources") or {}}, v1.Container, strict=False
    )
    try:
        found = container_resource(selector, own, {})
    except ConfigError:
        return ""
    return "node allocatable" if found == "0" and selector.resource in _UNLIMITED else found


def _optional(ref: Json) -> str:
    return "  Optional: true" if ref.get("optional") else ""


def _mount(mount: Json) -> str:
    how = "ro" if mount.get("readOnly") else "rw"
    path = f',path="{mount["subPath"]}"' if mount.get("subPath") else ""
    return f"{mount['mountPath']} from {mount['name']} ({how}{path})"


def _volumes(volumes: Sequence[Json]) -> list[str]:
    lines = []
    for volume in volumes:
        kind, source = _only({key: value for key, value in volume.items() if key != "name"})
        lines += [f"{volume['name']}: {kind or 'emptyDir'}", *indented(fields(_details(source)))]
    return lines


def _details(source: Json) -> Fields:
    """The fields of a volume's source, whatever they are."""
    found: Fields = []
    for key, value in source.items():
        if key == "defaultMode":
            found.append((_capital(key), f"0{value:o}"))
        elif isinstance(value, list):
            found.append((_capital(key), list(map(as_json, value))))
        else:
            found.append((_capital(key), as_json(value) if isinstance(value, dict) else plain(value)))
    return found


def _capital(key: str) -> str:
    return key[:1].upper() + key[1:]


def _by(things: Sequence[Json] | None, key: str) -> list[Json]:
    return sorted(things or (), key=lambda thing: str(thing.get(key, "")))


def _toleration(toleration: Json) -> str:
    value, effect = toleration.get("value"), toleration.get("effect")
    text = f"{toleration.get('key', '')}{f'={value}' if value else ''}{f':{effect}' if effect else ''}"
    if toleration.get("operator") == "Exists" and not value:
        text = f"{text} op=Exists".lstrip()
    seconds = toleration.get("tolerationSeconds")
    return text if seconds is None else f"{text} for {seconds}s"


def _spread(constraint: Json) -> str:
    skew, selector = constraint["maxSkew"], constraint.get("labelSelector")
    text = f"{constraint['topologyKey']}:{constraint['whenUnsatisfiable']} when max skew {skew} is exceeded"
    return text if selector is None else f"{text} for selector {_selected(selector)}"


def _selected(selector: Json) -> str:
    """A selector of the API in one line, as `-l` takes it."""
    terms = [(key, f"{key}={value}") for key, value in (selector.get("matchLabels") or {}).items()]
    for each in selector.get("matchExpressions") or ():
        key, operator = each["key"], each["operator"]
        values = ",".join(sorted(each.get("values") or ()))
        unvalued = {"Exists": key, "DoesNotExist": f"!{key}"}
        terms.append((key, unvalued.get(operator) or f"{key} {operator.lower()} ({values})"))
    return ",".join(term for _, term in sorted(terms)) or _NONE


def _story(story: Sequence[Json], now_ns: int) -> list[str]:
    if not story:
        return ["Story: nothing is remembered of this pod."]
    rows = [["Time", "Age", "Cause", "What"]]
    for entry in story:
        times = f" (x{entry['count']} since {rfc3339(entry['first_ns'])})" if entry["count"] > 1 else ""
        ago = human_duration((now_ns - entry["at_ns"]) / _SECOND)
        rows.append([rfc3339(entry["at_ns"]), ago, entry["cause"], entry["text"] + times])
    return ["Story:", *indented(aligned(rows))]
