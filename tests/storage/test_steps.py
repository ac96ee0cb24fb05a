"""The pure core: whatever happens, in whatever order, volumes come to what pods want, nothing is left."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tests.storage.world import DRIVER, pod_of
from trio_kubelet.api import v1
from trio_kubelet.storage.backoff import PAUSES, OperationBackOff
from trio_kubelet.storage.names import csi_name, unique_name
from trio_kubelet.storage.specs import CSI, Spec
from trio_kubelet.storage.steps import (
    Operation,
    OperationKind,
    ReportedVolumes,
    possible_steps,
    unattached,
    unmounted,
)
from trio_kubelet.storage.world import (
    Actual,
    Desired,
    MountState,
    PodMount,
    Volume,
    WantedVolume,
    device_failed,
    mount_failed,
    volumes_in_use,
    with_device,
    with_mount,
    without_mount,
)

NAMES = ("a", "b", "c")
PODS = ("p", "q", "r")


def spec_of(name: str, *, attachable: bool = False, block: bool = False) -> Spec:
    """A volume of the driver."""
    return Spec(
        unique_name=unique_name(CSI, csi_name(DRIVER, name)),
        name=f"pv-{name}",
        plugin=CSI,
        source=v1.CSIPersistentVolumeSource(driver=DRIVER, volume_handle=name),
        driver=DRIVER,
        handle=name,
        device=True,
        attachable=attachable,
        block=block,
    )


def wanted_by(pod: str, names: list[str], *, attachable: bool = False) -> dict[str, WantedVolume]:
    """What a pod wants, by the names of its volumes."""
    made = pod_of(pod, *names)
    return {name: WantedVolume(made, name, spec_of(name, attachable=attachable)) for name in names}


def do(desired: Desired, actual: Actual, step: Operation, outcome: str) -> None:
    """What the shell does with a step that ends like this: `ok`, `uncertain` or `failed`."""
    name, uid = step.name, step.uid
    finished = outcome == "failed"
    match step.kind:
        case OperationKind.MOUNT:
            wanted = desired.find(uid, name)
            assert wanted is not None
            actual.setdefault(name, Volume(spec=wanted.spec))
            if actual[name].device.state is not MountState.MOUNTED:
                with_device(actual, name, MountState.UNCERTAIN)
                if outcome != "ok":
                    device_failed(actual, name, finished=finished)
                    return
                with_device(actual, name, MountState.MOUNTED)
            before = actual[name].mounts.get(uid)
            mount = PodMount(uid=uid, spec=wanted.spec, found=before is not None and before.found)
            with_mount(actual, name, mount)
            if outcome == "ok":
                with_mount(actual, name, PodMount(uid=uid, spec=wanted.spec, state=MountState.MOUNTED))
            else:
                mount_failed(actual, name, uid, finished=finished)
        case OperationKind.UNMOUNT:
            assert uid in desired.released, "only what was given up is unmounted"
            if outcome == "ok":
                without_mount(actual, name, uid)
        case OperationKind.UNMOUNT_DEVICE:
            assert not actual[name].mounts, "a pod has it"
            with_device(actual, name, MountState.NOT_MOUNTED if outcome == "ok" else MountState.UNCERTAIN)
        case _:
            assert step.kind is OperationKind.FORGET
            assert actual[name].device.state is MountState.NOT_MOUNTED
            assert not actual[name].mounts
            del actual[name]


Change = tuple[str, list[str] | None]
changes = st.lists(
    st.tuples(st.sampled_from(PODS), st.none() | st.lists(st.sampled_from(NAMES), unique=True, min_size=1)),
    max_size=8,
)
outcomes = st.lists(st.sampled_from(("ok", "uncertain", "failed")), max_size=30)


@given(changes, outcomes)
def test_volumes_come_to_what_pods_want(history: list[Change], fates: list[str]) -> None:
    desired, actual, fates = Desired(), Actual(), list(fates)

    def step_once() -> bool:
        names = sorted({*actual, *desired.volumes})
        steps = [s for name in names for s in possible_steps(desired, actual, ReportedVolumes(), name)[:1]]
        for step in steps:
            do(desired, actual, step, fates.pop() if fates else "ok")
        return bool(steps)

    for pod, names in history:
        uid = f"uid-{pod}"
        if names is None:
            desired.release(uid)
        elif uid not in desired.released:
            desired.want(uid, wanted_by(pod, names) | desired.pods.get(uid, {}))
        step_once()
        for uid in [u for u in desired.released if not any(u in v.mounts for v in actual.values())]:
            desired.released.discard(uid)
    rounds = 0
    while step_once():
        rounds += 1
        assert rounds < 200
    for uid, wanted in desired.pods.items():
        assert unmounted(desired, actual, uid, list(wanted)) == []
    assert actual.keys() == desired.volumes.keys()
    for name, volume in actual.items():
        assert volume.mounts.keys() == desired.volumes[name].keys()


@given(changes)
def test_nothing_of_a_volume_is_done_before_the_node_says_it_is_attached(history: list[Change]) -> None:
    desired = Desired()
    for pod, names in history:
        if names:
            desired.want(f"uid-{pod}", wanted_by(pod, names, attachable=True))
    for name in desired.volumes:
        for view in (ReportedVolumes(), ReportedVolumes(in_use={name}), ReportedVolumes(attached={name: ""})):
            assert possible_steps(desired, {}, view, name) == []
        attached = ReportedVolumes(in_use={name}, attached={name: ""})
        assert possible_steps(desired, {}, attached, name)[0].kind is OperationKind.MOUNT
    assert volumes_in_use(desired, {}) == sorted(desired.volumes)
    for uid, wanted in desired.pods.items():
        assert unattached(desired, {}, ReportedVolumes(), uid) == sorted(wanted)


def test_what_was_found_on_the_disk_stays_uncertain_when_mounting_it_fails() -> None:
    spec = spec_of("a")
    actual: Actual = {spec.unique_name: Volume(spec=spec)}
    with_mount(actual, spec.unique_name, PodMount(uid="u", spec=spec, found=True))
    mount_failed(actual, spec.unique_name, "u", finished=True)
    assert actual[spec.unique_name].mounts["u"].state is MountState.UNCERTAIN


def test_a_volume_that_was_read_back_counts_as_in_use_until_it_is_known() -> None:
    spec = spec_of("a")
    found = spec_of("a", attachable=True)  # of a volume on the disk it is not known whether it was attached
    assert volumes_in_use(Desired(), {spec.unique_name: Volume(spec=found)}) == [spec.unique_name]
    assert volumes_in_use(Desired(), {spec.unique_name: Volume(spec=spec)}) == []


@given(st.integers(min_value=1, max_value=30))
def test_pauses_double_up_to_two_minutes(failures: int) -> None:
    back_off, now = OperationBackOff(), 0.0
    pauses = [back_off.failed(("v", "u"), "mount", now) for _ in range(failures)]
    assert pauses[0] == PAUSES.first
    assert all(later == min(2 * earlier, PAUSES.most) for earlier, later in itertools.pairwise(pauses))
    assert back_off.ready_at(("v", "u"), "mount") == pauses[-1]
    assert back_off.ready_at(("v", "u"), "unmount") == 0.0, "another operation is not held back"
    back_off.hurry({"v"})
    assert back_off.ready_at(("v", "u"), "mount") == 0.0
