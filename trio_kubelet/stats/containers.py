"""What containers of a few pods use now, for somebody who looks at just these: their cgroups and nothing
else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trio_kubelet.common.lanes import STATS
from trio_kubelet.machine.cgroup_reader import CgroupReader
from trio_kubelet.machine.values import CgroupUse
from trio_kubelet.podinfo.cgroup_names import CgroupNames
from trio_kubelet.stats.cgroup_map import NOWHERE, map_cgroups
from trio_kubelet.stats.collector import Rates


class ContainerUse:
    """Reads on demand; a rate is that since the last time somebody asked for the same container."""

    def __init__(self, reader: CgroupReader, names: CgroupNames) -> None:
        self._reader = reader
        self._names = names
        self._where = NOWHERE
        self._rates = Rates()

    async def of(self, pods: Mapping[str, Sequence[str]]) -> dict[str, tuple[int | None, int]]:
        """Nanoseconds of CPU per second (None at first) and bytes of working set, by container id.

        `pods` are ids of containers by UID; those without a cgroup are left out.
        """
        found = await STATS.run(self._read, pods)
        answer = {}
        for container, (path, use) in found.items():
            answer[container] = self._rates.read(path, use.at_ns, use.cpu), use.working_set
        self._rates.next_round()
        return answer

    def _read(self, pods: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, CgroupUse]]:
        self._where = map_cgroups(self._reader, self._names, pods, self._where)
        paths = self._where.containers
        wanted = [(each, paths[each]) for ids in pods.values() for each in ids if each in paths]
        uses = self._reader.uses([path for _, path in wanted], processes=False)
        return {each: (path, use) for (each, path), use in zip(wanted, uses, strict=True) if use is not None}
