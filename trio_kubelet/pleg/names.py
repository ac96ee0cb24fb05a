"""Which pods of the runtime have a name: an index over the relist table, kept up with what lists show."""

from __future__ import annotations

from trio_kubelet.native.doors import RelistTableLike


class NamesOfPods:
    """UIDs by name and namespace. Of each pod that is new in a list the table is asked once; whether it is
    still there, when somebody asks for its name.
    """

    def __init__(self, table: RelistTableLike) -> None:
        self._table = table
        self._names: dict[str, tuple[str, str]] = {}
        self._uids: dict[tuple[str, str], set[str]] = {}

    def note(self, uid: str) -> None:
        """A list shows something new of this pod; it may be that it is gone."""
        name = self._names.get(uid)
        if name is not None:
            if self._table.pod(uid) is None:
                self._forget(uid, name)
        elif (view := self._table.pod(uid)) is not None:
            self._names[uid] = view.name, view.namespace
            self._uids.setdefault((view.name, view.namespace), set()).add(uid)

    def uids(self, name: str, namespace: str) -> list[str]:
        """The pods of that name that are there, as last listed."""
        return sorted(self._uids.get((name, namespace), ()))

    def _forget(self, uid: str, name: tuple[str, str]) -> None:
        del self._names[uid]
        uids = self._uids[name]
        uids.discard(uid)
        if not uids:
            del self._uids[name]
