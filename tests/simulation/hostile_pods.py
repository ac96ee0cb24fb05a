"""Pods that the API server takes and nobody in his right mind writes.

Everything is drawn from one source of randomness, so that a seed makes the same pod again. What comes out is
put through the defaults and the validation of the API server; what that refuses is drawn anew.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any, TypeVar

from trio_kubelet.api import v1
from trio_kubelet.api.decode import decode, plain
from trio_kubelet.api.defaults import set_pod_defaults
from trio_kubelet.api.errors import ManifestError
from trio_kubelet.api.validation.pod import validate_pod
from trio_kubelet.podinfo.updates import CONFIG_HASH_ANNOTATION, CONFIG_SOURCE_ANNOTATION
from trio_kubelet.sources.manifest import unify

T = TypeVar("T")
Tree = dict[str, Any]

UNEXPECTED = re.compile(r'"Unexpected error in|unexpected \w+(Error|Exception|Group)|which is unexpected')
"""What the agent's log says of what nobody thought of."""
IMAGE = "localhost/busybox:1"
_HOSTS = [
    "010.0.0.1",
    "127.1",
    "localhost",
    "::1",
    "::ffff:10.0.0.1",
    "fe80::1%eth0",
    "0.0.0.0",
    "256.1.1.1",
    "",
    "a..b",
    ".example",
    "example.",
    "x" * 64,
    "x" * 300,
    "xn--a",
    "ü.example",
    "a b",
    "[::1]",
    "a\tb",
    "-",
    "٣.1",
]
_TEXTS = [
    "",
    " ",
    "a",
    "x" * 64,
    "x" * 5000,
    "ü",
    "\u202e",
    "\U0001f600" * 20,
    "a\nb",
    "\t",
    "'",
    '"',
    "$(X)",
    "$$(X)",
    "$(",
    "%s",
    "{}",
    "..",
    "/",
    "\\",
    "\x7f",
    "\u0085",
    "null",
    "0",
    "\ufffd",
]
_PATHS = [
    "/",
    "/a",
    "/a//b",
    "a",
    "data/",
    "./x",
    "/ü",
    "/a b",
    "/%zz",
    "/a?b#c",
    "http://h:1/x",
    "/" + "x" * 4000,
]
_QUANTITIES = [
    "0",
    "1",
    "1m",
    "100m",
    "1n",
    "1e3",
    "1E",
    "9223372036854775807",
    "1Ki",
    "8Ei",
    "0.1",
    ".5",
    "+1",
    "1e-9",
    "123456789012345678901234567890",
    "1u",
    "1e18",
]
_MOMENTS = ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "2024-02-29T23:59:59.999999999+14:00", None]
_PHASES = ["Pending", "Running", "Succeeded", "Failed", "Unknown", *_TEXTS]
_SECONDS = [0, 1, 2, 30, 3600, 2**31 - 1]
LONGEST_GRACE = 60  # seconds that a test can wait for; some pods ask for more
_GRACES = [0, 1, 2, 30, LONGEST_GRACE] * 10 + [3600, 2**31, 2**62, 2**63 - 1]
_PORTS: list[int | str] = [1, 80, 65535, "web", "x" * 15, "65535", "080"]
_NAMES = ["a", "0", "a-b", "x" * 63, "0" * 63, "xn--a", "1e3", "null", "true"]


class Absurd:
    """Draws pods. `odd` is how likely a field is drawn at all."""

    def __init__(self, rng: random.Random, odd: float = 0.3) -> None:
        self._rng = rng
        self._odd = odd

    def pod(self, name: str) -> v1.Pod:
        """A pod of that name, valid by the API server."""
        while True:
            tree = self._tree(name)
            try:
                pod = decode(tree, v1.Pod)
                set_pod_defaults(pod)
                unify(pod)
                problems = validate_pod(pod)
            except ManifestError:
                continue
            if not problems:
                return plain(pod)

    # What a pod consists of

    def _tree(self, name: str) -> Tree:
        annotations = self._map(_TEXTS)
        annotations |= {CONFIG_HASH_ANNOTATION: f"uid-{name}", CONFIG_SOURCE_ANNOTATION: "file"}
        metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "annotations": annotations}
        metadata["labels"] = self._map(["", "a", "x" * 63, "1", "A_b.c"])
        metadata |= self._some(
            generateName=lambda: self._of(_NAMES),
            finalizers=lambda: ["example.com/x"],
            ownerReferences=lambda: [
                {"apiVersion": "v1", "kind": "Node", "name": self._of(_NAMES), "uid": "u", "controller": True}
            ],
            creationTimestamp=lambda: self._of(_MOMENTS),
        )
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            "spec": self._spec(),
            "status": self._status(),
        }

    def _spec(self) -> Tree:
        volumes = [self._volume(f"v{number}") for number in range(self._few())]
        names = [volume["name"] for volume in volumes]
        spec: Tree = {
            "nodeName": "node",
            "containers": [self._container(f"c{n}", names) for n in range(1 + self._few())],
            "terminationGracePeriodSeconds": self._of(_GRACES),
            "volumes": volumes,
        }
        if self._is():
            spec["initContainers"] = [self._init(f"i{n}", names) for n in range(self._few())]
        return spec | self._some(
            restartPolicy=lambda: self._of(["Always", "OnFailure", "Never"]),
            activeDeadlineSeconds=lambda: self._of([1, 5, 2**31 - 1]),
            dnsPolicy=lambda: self._of(["Default", "ClusterFirst", "ClusterFirstWithHostNet", "None"]),
            dnsConfig=self._dns,
            hostNetwork=self._coin,
            hostPID=self._coin,
            hostIPC=self._coin,
            shareProcessNamespace=self._coin,
            hostname=lambda: self._of(_NAMES),
            subdomain=lambda: self._of(_NAMES),
            setHostnameAsFQDN=self._coin,
            hostAliases=lambda: [{"ip": self._of(_HOSTS), "hostnames": [self._of(_NAMES)]}],
            enableServiceLinks=self._coin,
            automountServiceAccountToken=self._coin,
            serviceAccountName=lambda: self._of(_NAMES),
            nodeSelector=lambda: self._map(["a", ""]),
            priority=lambda: self._of([-(2**31), 0, 10**9]),
            preemptionPolicy=lambda: self._of(["Never", "PreemptLowerPriority"]),
            runtimeClassName=lambda: self._of(_NAMES),
            schedulerName=lambda: self._of(_TEXTS),
            imagePullSecrets=lambda: [{"name": self._of([*_NAMES, ""])}],
            readinessGates=lambda: [{"conditionType": self._of(["a", "example.com/a", "Ready"])}],
            tolerations=self._tolerations,
            securityContext=self._pod_security,
            overhead=lambda: self._resources(),
            os=lambda: {"name": self._of(["linux", "windows"])},
            resources=lambda: {"requests": self._resources(), "limits": self._resources()},
            topologySpreadConstraints=lambda: [
                {"maxSkew": 2**31 - 1, "topologyKey": "a", "whenUnsatisfiable": "DoNotSchedule"}
            ],
        )

    def _status(self) -> Tree:
        """What a manifest says has become of its pod: nobody has validated it."""
        return self._some(
            phase=lambda: self._of(_PHASES),
            qosClass=lambda: self._of(["Guaranteed", "Burstable", "BestEffort", *_TEXTS]),
            reason=lambda: self._of(_TEXTS),
            message=lambda: self._of(_TEXTS),
            podIP=lambda: self._of(_HOSTS),
            podIPs=lambda: [{"ip": self._of(_HOSTS)} for _ in range(self._few())],
            hostIP=lambda: self._of(_HOSTS),
            hostIPs=lambda: [{"ip": self._of(_HOSTS)}],
            startTime=lambda: self._of(_MOMENTS),
            nominatedNodeName=lambda: self._of(_NAMES),
            observedGeneration=lambda: self._of([-1, 0, 2**63 - 1]),
            resize=lambda: self._of(["Proposed", *_TEXTS]),
            allocatedResources=self._resources,
            resources=lambda: {"requests": self._resources(), "limits": self._resources()},
            conditions=lambda: [self._condition() for _ in range(self._few())],
            containerStatuses=lambda: [self._said_of(f"c{n}") for n in range(self._few())],
            initContainerStatuses=lambda: [self._said_of(f"i{n}") for n in range(self._few())],
            ephemeralContainerStatuses=lambda: [self._said_of(self._of(_TEXTS))],
            resourceClaimStatuses=lambda: [{"name": self._of(_NAMES), "resourceClaimName": self._of(_TEXTS)}],
        )

    def _condition(self) -> Tree:
        kinds = ["Ready", "Initialized", "PodScheduled", "DisruptionTarget", "AllContainersRestarting"]
        return {
            "type": self._of([*kinds, *_TEXTS]),
            "status": self._of(["True", "False", *_TEXTS]),
        } | self._some(
            lastTransitionTime=lambda: self._of(_MOMENTS),
            observedGeneration=lambda: self._of([-1, 2**63 - 1]),
            reason=lambda: self._of(_TEXTS),
            message=lambda: self._of(_TEXTS),
        )

    def _said_of(self, container: str) -> Tree:
        return {"name": container, "image": self._of(_TEXTS), "imageID": self._of(_TEXTS)} | self._some(
            containerID=lambda: self._of(["containerd://a", "://", "docker://x://y", *_TEXTS]),
            ready=self._coin,
            started=self._coin,
            restartCount=lambda: self._of([-1, 0, 2**31 - 1]),
            state=self._state,
            lastState=self._state,
            resources=lambda: {"requests": self._resources(), "limits": self._resources()},
            allocatedResources=self._resources,
            stopSignal=lambda: self._of(["SIGTERM", *_TEXTS]),
            user=lambda: {"linux": {"uid": -1, "gid": 2**63 - 1, "supplementalGroups": [-(2**63)]}},
            volumeMounts=lambda: [{"name": self._of(_NAMES), "mountPath": self._of(_PATHS)}],
            allocatedResourcesStatus=lambda: [{"name": self._of(_TEXTS)}],
        )

    def _state(self) -> Tree:
        """None, one or several at once."""
        return self._some(
            waiting=lambda: {"reason": self._of(_TEXTS)},
            running=lambda: {"startedAt": self._of(_MOMENTS)},
            terminated=lambda: (
                {"exitCode": self._of([0, 1, -(2**31)]), "signal": self._of([0, 2**31 - 1])}
                | self._some(finishedAt=lambda: self._of(_MOMENTS), containerID=lambda: self._of(_TEXTS))
            ),
        )

    def _dns(self) -> Tree:
        return {
            "nameservers": [self._of(_HOSTS) for _ in range(self._few())],
            "searches": [self._of([*_NAMES, "x." * 100, "."]) for _ in range(self._few())],
            "options": [{"name": self._of(_TEXTS), "value": self._of(_TEXTS)} for _ in range(self._few())],
        }

    def _tolerations(self) -> list[Tree]:
        effects = ["", "NoExecute", "NoSchedule"]
        return [
            {
                "operator": "Exists",
                "effect": self._of(effects),
                "tolerationSeconds": self._of([None, -1, 0, 2**62]),
            }
            for _ in range(self._few())
        ]

    def _pod_security(self) -> Tree:
        return self._some(
            runAsUser=self._id,
            runAsGroup=self._id,
            runAsNonRoot=self._coin,
            fsGroup=self._id,
            fsGroupChangePolicy=lambda: self._of(["Always", "OnRootMismatch"]),
            supplementalGroups=lambda: [self._id() for _ in range(self._few())],
            supplementalGroupsPolicy=lambda: self._of(["Merge", "Strict"]),
            sysctls=lambda: [
                {"name": self._of(["kernel.shm_rmid_forced", "a/b", "net.x"]), "value": self._of(_TEXTS)}
            ],
            seLinuxOptions=lambda: {"level": self._of(_TEXTS), "role": self._of(_TEXTS)},
            seccompProfile=self._seccomp,
            appArmorProfile=self._apparmor,
        )

    def _seccomp(self) -> Tree:
        if self._coin():
            return {"type": "Localhost", "localhostProfile": self._of(["a", "a/../b", "ü", "x" * 300])}
        return {"type": self._of(["RuntimeDefault", "Unconfined"])}

    def _apparmor(self) -> Tree:
        if self._coin():
            return {"type": "Localhost", "localhostProfile": self._of(["a", "ü", "x" * 300])}
        return {"type": self._of(["RuntimeDefault", "Unconfined"])}

    def _volume(self, name: str) -> Tree:
        sources: list[Callable[[], Tree]] = [
            lambda: {"emptyDir": self._some(sizeLimit=lambda: self._of(_QUANTITIES))},
            lambda: {
                "hostPath": {
                    "path": self._of(["/nonexistent", "/dev/null", "/proc/self"]),
                    "type": self._of(["", "Directory", "File", "Socket", "CharDevice", "BlockDevice"]),
                }
            },
            lambda: {"downwardAPI": {"items": [self._downward() for _ in range(self._few())]}},
            lambda: {"projected": {"sources": [{"downwardAPI": {"items": [self._downward()]}}]}},
            lambda: {"configMap": {"name": self._of(_NAMES), "optional": self._coin()}},
            lambda: {"secret": {"secretName": self._of(_NAMES), "defaultMode": self._of([0, 0o777])}},
            lambda: {
                "projected": {"sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 2**31}}]}
            },
            lambda: {"persistentVolumeClaim": {"claimName": self._of(_NAMES)}},
            lambda: {"csi": {"driver": self._of(["a.b", "x" * 63])}},
            lambda: {"image": {"reference": self._of([IMAGE, "no/such:image", "x" * 200])}},
            lambda: {
                "ephemeral": {
                    "volumeClaimTemplate": {
                        "spec": {
                            "accessModes": ["ReadWriteOnce"],
                            "resources": {"requests": {"storage": "1"}},
                        }
                    }
                }
            },
            lambda: {"nfs": {"server": self._of([h for h in _HOSTS if h]), "path": "/"}},
        ]
        return {"name": name, **self._of(sources)()}

    def _downward(self) -> Tree:
        item: Tree = {
            "path": self._of(["a", "a/b", "ü", ".a", "x" * 200]),
            "mode": self._of([0, 0o777, None]),
        }
        if self._coin():
            fields = ["metadata.name", "metadata.labels", "metadata.annotations['a']", "metadata.uid"]
            return item | {"fieldRef": {"fieldPath": self._of(fields)}}
        resources = ["limits.cpu", "requests.memory", "limits.ephemeral-storage", "requests.hugepages-2Mi"]
        ref = {
            "containerName": "c0",
            "resource": self._of(resources),
            "divisor": self._of(["0", "1m", "1", "1Ki"]),
        }
        return item | {"resourceFieldRef": ref}

    def _init(self, name: str, volumes: list[str]) -> Tree:
        container = self._container(name, volumes)
        if self._coin():
            return container | {"restartPolicy": "Always"}
        for kind in ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle"):
            container.pop(kind, None)
        return container | {"command": self._of([["true"], ["false"], ["sleep", "1"], ["sleep", "100000"]])}

    def _container(self, name: str, volumes: list[str]) -> Tree:
        container: Tree = {
            "name": name,
            "image": self._of([IMAGE] * 6 + ["no/such:image", "x" * 255, "a:b:c", "UPPER/x", "a@sha256:1"]),
            "command": self._of(
                [["serve"], ["sh", "-c", "trap '' TERM; sleep 100000"], ["exit", "3"], [""], ["ü" * 99]]
            ),
        }
        return container | self._some(
            args=lambda: [self._of(_TEXTS) for _ in range(self._few())],
            workingDir=lambda: self._of(_PATHS),
            imagePullPolicy=lambda: self._of(["Always", "IfNotPresent", "Never"]),
            env=self._env,
            envFrom=lambda: [{"prefix": "P_", "configMapRef": {"name": "a", "optional": self._coin()}}],
            ports=self._ports,
            resources=lambda: {"requests": self._resources(), "limits": self._resources()},
            volumeMounts=lambda: [self._mount(volume) for volume in volumes],
            livenessProbe=self._probe,
            readinessProbe=lambda: self._probe() | {"successThreshold": self._of([1, 2**31 - 1])},
            startupProbe=self._probe,
            lifecycle=self._lifecycle,
            terminationMessagePath=lambda: self._of(
                ["/dev/termination-log", "/", "a", "/ü", "/etc/hosts", "/m0"]
            ),
            terminationMessagePolicy=lambda: self._of(["File", "FallbackToLogsOnError"]),
            securityContext=self._security,
            stdin=self._coin,
            stdinOnce=self._coin,
            tty=self._coin,
            resizePolicy=lambda: [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}],
            restartPolicy=lambda: self._of(["Always", "Never", "OnFailure"]),
        )

    def _env(self) -> list[Tree]:
        sources: list[Callable[[], Tree]] = [
            lambda: {"value": self._of(_TEXTS)},
            lambda: {
                "valueFrom": {
                    "fieldRef": {
                        "fieldPath": self._of(
                            [
                                "metadata.name",
                                "status.podIP",
                                "status.podIPs",
                                "spec.nodeName",
                                "metadata.labels['a']",
                            ]
                        )
                    }
                }
            },
            lambda: {
                "valueFrom": {"resourceFieldRef": {"resource": self._of(["limits.cpu", "requests.memory"])}}
            },
            lambda: {"valueFrom": {"configMapKeyRef": {"name": "a", "key": "b", "optional": self._coin()}}},
            lambda: {"valueFrom": {"secretKeyRef": {"name": "a", "key": "b", "optional": self._coin()}}},
            lambda: {
                "valueFrom": {
                    "fileKeyRef": {"volumeName": "v0", "path": "a", "key": "K", "optional": self._coin()}
                }
            },
        ]
        if self._rng.random() < 0.1:  # each ten times as long as the one before
            chain = [{"name": f"V{n}", "value": f"$(V{n - 1})" * 10} for n in range(1, 12)]
            return [{"name": "V0", "value": "x"}, *chain]
        names = ["X", "a.b", "A-B", "_", "x" * 300, "ü", "a b"]
        return [{"name": self._of(names), **self._of(sources)()} for _ in range(self._few())]

    def _ports(self) -> list[Tree]:
        return [
            {"containerPort": self._of([1, 80, 65535])}
            | self._some(
                hostPort=lambda: self._of([1, 80, 65535]),
                hostIP=lambda: self._of(_HOSTS),
                protocol=lambda: self._of(["TCP", "UDP", "SCTP"]),
                name=lambda: self._of(["web", "x" * 15, "a-1"]),
            )
            for _ in range(self._few())
        ]

    def _mount(self, volume: str) -> Tree:
        mount = {"name": volume, "mountPath": self._of(["/m0", "/m1", "/a b", "/ü", "/etc/hosts", "/m2/"])}
        return mount | self._some(
            readOnly=self._coin,
            subPath=lambda: self._of(["a", "data/", "./a", "ü", "a//b", "x" * 200]),
            subPathExpr=lambda: self._of(["$(X)", "a/$(X)", "$(", "$$(X)"]),
            mountPropagation=lambda: self._of(["None", "HostToContainer", "Bidirectional"]),
            recursiveReadOnly=lambda: self._of(["Disabled", "IfPossible", "Enabled"]),
        )

    def _probe(self) -> Tree:
        return self._handler() | self._some(
            initialDelaySeconds=lambda: self._of(_SECONDS),
            periodSeconds=lambda: self._of(_SECONDS[1:]),
            timeoutSeconds=lambda: self._of(_SECONDS[1:]),
            failureThreshold=lambda: self._of(_SECONDS[1:]),
        )

    def _handler(self) -> Tree:
        handlers: list[Callable[[], Tree]] = [
            lambda: {"exec": {"command": [self._of(_TEXTS) for _ in range(1 + self._few())]}},
            lambda: {"httpGet": self._http_get()},
            lambda: {"tcpSocket": {"port": self._of(_PORTS), "host": self._of(_HOSTS)}},
            lambda: {"grpc": {"port": self._of([1, 65535]), "service": self._of(_TEXTS)}},
        ]
        return self._of(handlers)()

    def _http_get(self) -> Tree:
        return {"port": self._of(_PORTS)} | self._some(
            host=lambda: self._of(_HOSTS),
            path=lambda: self._of(_PATHS),
            scheme=lambda: self._of(["HTTP", "HTTPS"]),
            httpHeaders=lambda: [{"name": self._of(["X-A", "host", "a_b"]), "value": self._of(_TEXTS)}],
        )

    def _lifecycle(self) -> Tree:
        def hook() -> Tree:
            if self._coin():
                return {"sleep": {"seconds": self._of([0, 1, 2])}}
            return (
                {"httpGet": self._http_get()} if self._coin() else {"exec": {"command": [self._of(_TEXTS)]}}
            )

        return self._some(preStop=hook, postStart=hook, stopSignal=lambda: self._of(["SIGTERM", "SIGRTMAX"]))

    def _security(self) -> Tree:
        return self._some(
            privileged=self._coin,
            runAsUser=self._id,
            runAsGroup=self._id,
            runAsNonRoot=self._coin,
            readOnlyRootFilesystem=self._coin,
            allowPrivilegeEscalation=self._coin,
            procMount=lambda: self._of(["Default", "Unmasked"]),
            capabilities=lambda: {"add": [self._of(_TEXTS)], "drop": ["ALL", self._of(_TEXTS)]},
            seccompProfile=self._seccomp,
            appArmorProfile=self._apparmor,
        )

    def _resources(self) -> Tree:
        kinds = ["cpu", "memory", "ephemeral-storage", "hugepages-2Mi", "example.com/gpu"]
        return {kind: self._of(_QUANTITIES) for kind in kinds if self._is()}

    # Drawing

    def _of(self, choices: list[T]) -> T:
        return self._rng.choice(choices)

    def _coin(self) -> bool:
        return self._rng.random() < 0.5

    def _is(self) -> bool:
        return self._rng.random() < self._odd

    def _few(self) -> int:
        return self._rng.choice([0, 1, 1, 2, 3])

    def _id(self) -> int:
        return self._of([0, 1, 65534, 2**31 - 1])

    def _map(self, values: list[str]) -> dict[str, str]:
        keys = ["a", "example.com/a", "x" * 63, "A.b_c-d", "x" * 250 + "/a"]
        return {self._of(keys): self._of(values) for _ in range(self._few())}

    def _some(self, **fields: Callable[[], Any]) -> Tree:
        return {name: make() for name, make in fields.items() if self._is()}
