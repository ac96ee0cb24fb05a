"""What `iscsiadm` is asked to log in to a target and out again. Pure.

The commands, their order and the texts of what goes wrong are the kubelet's (`iscsi_util.go`), recorded in
the tests' golden data; so are directories and file, so that either agent can log out of what the other has
logged in to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.common.deep_json import decode_flat
from trio_kubelet.storage.errors import OperationError
from trio_kubelet.storage.names import with_port
from trio_kubelet.storage.specs import Spec

TOOL: Final = "iscsiadm"
FILE: Final = "iscsi.json"
_DISCOVERY: Final = "discovery.sendtargets.auth"
_SESSION: Final = "node.session.auth"
_KEYS: Final = ("username", "password", "username_in", "password_in")
_EXISTS: Final = 15
_NOTHING_THERE: Final = frozenset({2, 21})
_TRANSPORT: Final = re.compile(r"iface.transport_name = (.*)(?:\n|$)")
_LUN: Final = re.compile("[0-9]{1,10}")
_DIRECTORY: Final = re.compile(r"(?P<portal>.+?)-(?P<iqn>(?:iqn|eui|naa)\..*)-lun-(?P<lun>[0-9]+)")


class Target(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """A disk of a target, under the names that the kubelet's file gives its fields.

    `iface` is the interface it is logged in by, `init_iface` the one that this is made from where the volume
    names an initiator. `portals` have their ports.
    """

    vol_name: str = ""
    portals: tuple[str, ...] = ()
    iqn: str = ""
    lun: str = "0"
    init_iface: str = "default"
    iface: str = "default"
    initiator_name: str = ""


class Chap(msgspec.Struct, frozen=True):
    """Whether the initiator says who it is, and how."""

    discovery: bool = False
    session: bool = False
    secret: Mapping[str, str] = {}


class Command(msgspec.Struct, frozen=True):
    """A call of the tool. `failed` makes the error of its output and status; without it failing does not
    matter. After a failure `undo` is called, whatever comes of it.
    """

    arguments: tuple[str, ...]
    failed: Callable[[str, str], str] | None = None
    undo: tuple[str, ...] = ()
    fine: frozenset[int] = frozenset()


def target_of(spec: Spec) -> Target:
    """The target of a volume. Raises OperationError for names that would lead out of a directory."""
    source = spec.source
    assert isinstance(source, v1.ISCSIPersistentVolumeSource)
    portals = tuple(with_port(text) for text in (source.target_portal, *(source.portals or ())))
    initiator, own = source.initiator_name or "", source.iscsi_interface or "default"
    made = f"{portals[0]}:{spec.name}" if initiator else own
    for text in (*portals, source.iqn, own):
        if "/" in text or "\0" in text:
            raise OperationError(f"iscsi: {text!r} is no name of a portal, target or interface")
    return Target(
        vol_name=spec.name,
        portals=portals,
        iqn=source.iqn,
        lun=str(source.lun),
        init_iface=own,
        iface=made,
        initiator_name=initiator,
    )


def directory(target: Target) -> str:
    """Where the disk is mounted, below the plugin's directory."""
    return f"iface-{target.iface}/{target.portals[0]}-{target.iqn}-lun-{target.lun}"


def target_of_directory(iface: str, name: str) -> Target | None:
    """What the names of the directory's two levels say, None if they are no such names."""
    found = _DIRECTORY.fullmatch(name)
    if found is None or not iface.startswith("iface-"):
        return None
    own = iface.removeprefix("iface-")
    return Target(portals=(found["portal"],), iqn=found["iqn"], lun=found["lun"], init_iface=own, iface=own)


def by_path(target: Target, portal: str, transport: str) -> str:
    """The disk's link below `/dev/disk/by-path`, a pattern where the transport has a card of its own."""
    address = portal.replace("[", "").replace("]", "") if portal.startswith("[") else portal
    prefix = "" if transport == "tcp" else "pci-*-"
    return f"{prefix}ip-{address}-iscsi-{target.iqn}-lun-{target.lun}"


def transport_of(shown: str) -> str:
    """The transport of an interface as the tool shows it, "" if it does not say."""
    found = _TRANSPORT.search(shown)
    if found is None:
        return ""
    return "tcp" if found[1] == "<empty>" else found[1]


def show_interface(target: Target) -> tuple[str, ...]:
    """Asks for the settings of the interface the volume names."""
    return (TOOL, "-m", "iface", "-I", target.init_iface, "-o", "show")


def delete_interface(target: Target) -> tuple[str, ...]:
    """Gives the volume's own interface up."""
    return (TOOL, "-m", "iface", "-I", target.iface, "-o", "delete")


def make_interface(target: Target, shown: str) -> list[Command]:
    """An interface for the volume's initiator, with the settings of the one it names. Raises
    OperationError.
    """
    if target.init_iface == target.iface:
        raise OperationError(f"iscsi: cannot clone iface with same name: {target.init_iface}")
    settings = {**_settings(shown), "iface.initiatorname": target.initiator_name}
    on = (TOOL, "-m", "iface", "-I", target.iface, "-o")
    made = Command(
        (*on, "new"),
        lambda output, status: f"iscsi: failed to create new iface: {output} ({status})",
        fine=frozenset({_EXISTS}),
    )

    def failed(output: str, status: str) -> str:
        # The output is that of making the interface, as the kubelet tells it: none.
        return f"iscsi: failed to update iface records:  ({status}). iface({target.init_iface}) will be used"

    return [
        made,
        *(
            Command((*on, "update", "-n", key, "-v", settings[key]), failed, delete_interface(target))
            for key in sorted(settings)
        ),
    ]


def log_in(target: Target, portal: str, chap: Chap) -> list[Command]:
    """Finds the target at a portal and logs in."""
    found = (TOOL, "-m", "discoverydb", "-t", "sendtargets", "-p", portal, "-I", target.iface)
    node = (TOOL, "-m", "node", "-p", portal, "-T", target.iqn, "-I", target.iface)
    commands = [Command((*found, "-o", "new"))]
    if chap.discovery:
        prefix = f"iscsi: failed to update discoverydb to portal {portal} error: iscsi: failed to update "
        commands += _chap(
            found,
            _DISCOVERY,
            chap.secret,
            f"{prefix}discoverydb with CHAP, output: ",
            lambda key: f'{prefix}discoverydb key "{key}" error: ',
        )
    commands += [
        Command(
            (*found, "--discover"),
            lambda output, status: (
                f"iscsi: failed to sendtargets to portal {portal} output: {output}, err {status}"
            ),
            (*found, "-o", "delete"),
        ),
        # Without it the kernel shows all units of the target (90982); an old tool has no such word.
        Command((*node, "-o", "update", "-n", "node.session.scan", "-v", "manual")),
    ]
    if chap.session:
        prefix = f"iscsi: failed to update iscsi node to portal {portal} error: iscsi: failed to update node "
        commands += _chap(
            node,
            _SESSION,
            chap.secret,
            f"{prefix}with CHAP, output: ",
            lambda key: f'{prefix}session key "{key}" error: ',
        )
    commands.append(
        Command(
            (*node, "--login"),
            lambda output, status: f"iscsi: failed to attach disk: Error: {output} ({status})",
            (TOOL, "-m", "node", "-p", portal, "-I", target.iface, "-T", target.iqn, "-o", "delete"),
        )
    )
    # A machine that starts does not wait for a target that may be away.
    by_hand = ("-o", "update", "-n", "node.startup", "-v", "manual")
    commands.append(Command((TOOL, "-m", "node", "-p", portal, "-T", target.iqn, *by_hand)))
    return commands


def log_out(target: Target) -> list[Command]:
    """Ends the sessions with a target that nobody uses any more."""

    def failed(_: str, status: str) -> str:
        return f"failed to finish detachISCSIDisk, err: {status}"

    commands = []
    for portal in dict.fromkeys(target.portals):
        node = (TOOL, "-m", "node", "-p", portal, "-T", target.iqn)
        for what in (("--logout",), ("-o", "delete")):
            commands.append(
                Command((*node, *what, "-I", target.iface), failed, fine=_NOTHING_THERE),
            )
    if target.initiator_name and target.iface == f"{target.portals[0]}:{target.vol_name}":
        commands.append(Command(delete_interface(target), failed, fine=_NOTHING_THERE))
    return commands


def saved(target: Target) -> bytes:
    """The file that says how to log out."""
    return msgspec.json.encode(msgspec.to_builtins(target) | {"MetricsProvider": None}) + b"\n"


def load(text: bytes) -> Target | None:
    """What the file says, None if it cannot be read."""
    try:
        found = decode_flat(text, Target)
    except msgspec.DecodeError:
        return None
    return found if found.portals and found.iqn and _LUN.fullmatch(found.lun) else None


def _chap(
    record: tuple[str, ...],
    prefix: str,
    secret: Mapping[str, str],
    no_method: str,
    no_key: Callable[[str], str],
) -> list[Command]:
    """What a record says of who the initiator is."""

    def set_to(key: str, value: str, text: str) -> Command:
        return Command((*record, "-o", "update", "-n", key, "-v", value), lambda output, _: text + output)

    commands = [set_to(f"{prefix}.authmethod", "CHAP", no_method)]
    for key in (f"{prefix}.{each}" for each in _KEYS):
        if value := secret.get(key):
            commands.append(set_to(key, value, no_key(key)))
    return commands


def _settings(shown: str) -> dict[str, str]:
    """An interface's settings that can be given to another. Raises OperationError."""
    found = {}
    for line in shown.split("\n"):
        if not line.startswith("iface.") or "<empty>" in line:
            continue
        words = line.split()
        if len(words) != 3 or words[1] != "=":
            text = f"error: invalid iface setting: [{' '.join(words)}]"
            raise OperationError(f"iscsi: failed to parse iface records: {shown} ({text})")
        if words[0] != "iface.iscsi_ifacename":
            found[words[0]] = words[2]
    return found
