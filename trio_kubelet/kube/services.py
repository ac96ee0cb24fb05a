"""Environment variables that tell containers where the services of their namespace are.

Every namespace's services are followed, because a pod may arrive from any of them; of each only what the
variables are made of is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
import trio

from trio_kubelet.api import v1
from trio_kubelet.kube.doors import APIDoor
from trio_kubelet.kube.reflector import Reflector
from trio_kubelet.podinfo.doors import ConfigError
from trio_kubelet.podinfo.updates import is_static

FIRST_LIST_WAIT: Final = 5.0
"""Seconds a pod of the API server waits for the first list before its container has to try again."""
_MOST_PORTS: Final = 20_000
_MASTER_NAMESPACE: Final = "default"
_MASTER_SERVICES: Final = frozenset({"kubernetes"})


class _Meta(v1.Object):
    name: str = ""
    namespace: str = ""
    resource_version: str = ""


class _Port(v1.Object):
    name: str = ""
    port: int = 0
    protocol: str = ""


class _Spec(v1.Object, rename={"cluster_ip": "clusterIP"}):
    cluster_ip: str = ""
    ports: list[_Port] | None = None


class ServiceInfo(v1.Object):
    """What of a Service the variables need."""

    metadata: _Meta = msgspec.field(default_factory=_Meta)
    spec: _Spec = msgspec.field(default_factory=_Spec)

    @property
    def has_ip(self) -> bool:
        """Whether it has an address; headless services and external names have none."""
        return self.spec.cluster_ip not in ("", "None")


def service_variables(services: Iterable[ServiceInfo], namespace: str, links: bool) -> dict[str, str]:
    """The variables for a pod: of the API server's own service always, of its namespace's with `links`.

    Raises ConfigError when they are far more than Linux starts a program with: to make them holds up others.
    """
    chosen: dict[str, ServiceInfo] = {}
    for service in services:
        if not service.has_ip or not service.spec.ports:
            continue
        meta = service.metadata
        if meta.namespace == _MASTER_NAMESPACE and meta.name in _MASTER_SERVICES:
            chosen.setdefault(meta.name, service)
        elif meta.namespace == namespace and links:
            chosen[meta.name] = service
    if sum(len(service.spec.ports or ()) for service in chosen.values()) > _MOST_PORTS:
        raise ConfigError(
            f"the services of namespace {namespace} have more than {_MOST_PORTS} ports, which no program can "
            "have as variables: set enableServiceLinks to false"
        )
    variables: dict[str, str] = {}
    for name in sorted(chosen):
        variables |= _variables_of(chosen[name])
    return variables


def _variables_of(service: ServiceInfo) -> dict[str, str]:
    address, ports = service.spec.cluster_ip, service.spec.ports or []
    prefix = _variable_name(service.metadata.name)
    found = {f"{prefix}_SERVICE_HOST": address, f"{prefix}_SERVICE_PORT": str(ports[0].port)}
    for port in ports:
        if port.name:
            found[f"{prefix}_SERVICE_PORT_{_variable_name(port.name)}"] = str(port.port)
    for index, port in enumerate(ports):
        protocol = port.protocol or "TCP"
        host = f"[{address}]" if ":" in address else address
        url = f"{protocol.lower()}://{host}:{port.port}"
        link = f"{prefix}_PORT_{port.port}_{protocol.upper()}"
        if index == 0:
            found[f"{prefix}_PORT"] = url
        found |= {
            link: url,
            f"{link}_PROTO": protocol.lower(),
            f"{link}_PORT": str(port.port),
            f"{link}_ADDR": address,
        }
    return found


def _variable_name(name: str) -> str:
    return name.replace("-", "_").upper()


class Services:
    """Follows the services of the cluster."""

    def __init__(self, door: APIDoor) -> None:
        self._reflector: Reflector[ServiceInfo] = Reflector(
            door, "/api/v1/services", ServiceInfo, changed=self._changed
        )
        self._by_namespace: dict[str, list[ServiceInfo]] | None = None

    async def run(self) -> None:
        """Follows until cancelled."""
        await self._reflector.run()

    def hurry(self) -> None:
        """The server answers others again: after a failure, try soon."""
        self._reflector.hurry()

    async def variables(self, pod: v1.Pod) -> Mapping[str, str]:
        """The variables of the services a pod sees. Raises ConfigError.

        A pod of the API server waits for the first list: without it, it might not find the API server. A
        static pod does not, it has to run without.
        """
        if not is_static(pod):
            with trio.move_on_after(FIRST_LIST_WAIT):
                await self._reflector.synced.wait()
            if not self._reflector.synced.is_set():
                raise ConfigError("services have not yet been read at least once, cannot construct envvars")
        if self._by_namespace is None:
            self._by_namespace = {}
            for service in self._reflector.objects.values():
                self._by_namespace.setdefault(service.metadata.namespace, []).append(service)
        namespace, links = pod.metadata.namespace, bool(pod.spec.enable_service_links)
        seen = [*self._by_namespace.get(_MASTER_NAMESPACE, ())]
        if namespace != _MASTER_NAMESPACE:
            seen += self._by_namespace.get(namespace, ())
        return service_variables(seen, namespace, links)

    def _changed(self) -> None:
        self._by_namespace = None
