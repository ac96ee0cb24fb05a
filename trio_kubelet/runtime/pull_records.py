"""Who may use an image that is on the node already: what was pulled with which credentials. Pure.

A pod without credentials must not run an image that another pod pulled with its own (KEP-2535). Each image
the agent pulled has a record of the pull secrets and service accounts that were good for it, by the name it
was pulled by; who has none of them has to pull again. The records are those of the kubelet; one with fields
that are not known here, of a later one, cannot be read, for what they say may be who may not.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec

from trio_kubelet.api.images import InvalidImageName, parse_image_name
from trio_kubelet.config.types import API_VERSION
from trio_kubelet.credential_providers.keyring import AccountSource, Credential, SecretSource

_MATCHES_WRITTEN: Final = 100
"""Secrets in a record up to which further ones that fit are added to it."""


class Check(enum.StrEnum):
    """What came out of a check (label `result` of the metric)."""

    POLICY_ALLOWED = "credentialPolicyAllowed"
    FOUND = "credentialRecordFound"
    MUST_AUTHENTICATE = "mustAuthenticate"
    ERROR = "error"

    @property
    def allowed(self) -> bool:
        """Whether the pod may use the image without pulling it."""
        return self in (Check.POLICY_ALLOWED, Check.FOUND)


class PulledBySecret(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A pull secret, and the hash of the login in it."""

    uid: str
    namespace: str
    name: str
    credential_hash: str = ""


class PulledByAccount(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A service account."""

    uid: str
    namespace: str
    name: str


P = TypeVar("P", bound=PulledBySecret | PulledByAccount)


class Pullers(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """Who may use an image by one name; `node_pods_accessible`: every pod of the node."""

    kubernetes_secrets: tuple[PulledBySecret, ...] = ()
    kubernetes_service_accounts: tuple[PulledByAccount, ...] = ()
    node_pods_accessible: bool = False


class PulledRecord(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """An image that was pulled. Names are those of containers, without tag and digest."""

    # Made by functions, for these are written although they are always the same.
    kind: str = msgspec.field(default_factory=lambda: "ImagePulledRecord")
    api_version: str = msgspec.field(default_factory=lambda: API_VERSION)
    last_updated_time: str
    image_ref: str
    credential_mapping: dict[str, Pullers] = {}


class PullIntent(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """An image that is being pulled; after a crash it says that the image may be the agent's."""

    kind: str = "ImagePullIntent"
    api_version: str = API_VERSION
    image: str


class Policy(NamedTuple):
    """`imagePullCredentialsVerificationPolicy` and the list of images that belongs to it."""

    name: str
    allowlist: Sequence[str] = ()

    def verifies(self, repository: str, pulled_here: bool) -> bool:
        """Whether a pod has to show credentials for an image; `pulled_here`: the agent pulled it."""
        if self.name == "NeverVerifyAllowlistedImages":
            return not any(_listed(repository, pattern) for pattern in self.allowlist)
        return self.name == "AlwaysVerify" or (self.name == "NeverVerifyPreloadedImages" and pulled_here)


def _listed(repository: str, pattern: str) -> bool:
    if pattern.endswith("/*"):
        return repository.startswith(pattern.removesuffix("*"))
    return repository == pattern


def bare_name(image: str) -> str:
    """An image's name as given, without tag and digest. Raises InvalidImageName."""
    name = parse_image_name(image)
    return image.removesuffix("@" + name.digest).removesuffix(":" + name.tag)


def check(policy: Policy, image: str, record: PulledRecord | None, pulled_here: bool) -> Check | Pullers:
    """Whether pods may use an image; Pullers: those who have one of these."""
    try:
        name = bare_name(image)
    except InvalidImageName:
        return Check.ERROR
    if not policy.verifies(name, pulled_here):
        return Check.POLICY_ALLOWED
    pullers = record.credential_mapping.get(name) if record is not None else None
    if pullers is None:
        return Check.MUST_AUTHENTICATE
    if pullers.node_pods_accessible:
        return Check.FOUND
    if not pullers.kubernetes_secrets and not pullers.kubernetes_service_accounts:
        return Check.MUST_AUTHENTICATE
    return pullers


def fits(pullers: Pullers, credentials: Sequence[Credential]) -> tuple[Check, Pullers | None]:
    """Whether an image was pulled with one of a pod's credentials, and what to add to its record.

    The same login in another secret counts, and the same secret with another login.
    """
    for own in credentials:
        if not isinstance(own.source, SecretSource):
            continue
        mine = _secret(own, own.source)
        for known in pullers.kubernetes_secrets:
            same_login = bool(known.credential_hash) and known.credential_hash == mine.credential_hash
            same_secret = (known.namespace, known.name, known.uid) == (mine.namespace, mine.name, mine.uid)
            if not same_login and not same_secret:
                continue
            room = len(pullers.kubernetes_secrets) < _MATCHES_WRITTEN
            if same_login or room:
                news = Pullers((mine,)) if room and not (same_login and same_secret) else None
                return Check.FOUND, news
    account = next((c.source for c in credentials if isinstance(c.source, AccountSource)), None)
    if account is not None and _account(account) in pullers.kubernetes_service_accounts:
        return Check.FOUND, None
    return Check.MUST_AUTHENTICATE, None


def pullers_of(used: Credential | None) -> Pullers:
    """Who may use an image that was pulled with `used`; None: with no credentials."""
    match used:
        case Credential(source=SecretSource() as source):
            return Pullers((_secret(used, source),))
        case Credential(source=AccountSource() as source):
            return Pullers(kubernetes_service_accounts=(_account(source),))
        case _:
            return Pullers(node_pods_accessible=True)


def with_pullers(record: PulledRecord, name: str, new: Pullers, now: str) -> PulledRecord:
    """The record with what is `new`; the same object if nothing is."""
    old = record.credential_mapping.get(name)
    merged = _merge(old, new) if old is not None else new
    if merged == old or merged == Pullers():
        return record
    mapping = {**record.credential_mapping, name: merged}
    return msgspec.structs.replace(
        record, api_version=API_VERSION, credential_mapping=mapping, last_updated_time=now
    )


def _merge(old: Pullers, new: Pullers) -> Pullers:
    if old.node_pods_accessible or new.node_pods_accessible:
        return Pullers(node_pods_accessible=True)
    return Pullers(
        _union(old.kubernetes_secrets, new.kubernetes_secrets),
        _union(old.kubernetes_service_accounts, new.kubernetes_service_accounts),
    )


def _union(old: tuple[P, ...], new: tuple[P, ...]) -> tuple[P, ...]:
    """Both in order, the new one where two are of the same object. Unchanged if there is nothing new."""
    # Sorting is stable, so of the same object the new one comes last.
    if set(new) <= set(old):
        return old
    return tuple({_coordinates(item): item for item in sorted((*old, *new), key=_coordinates)}.values())


def _coordinates(item: PulledBySecret | PulledByAccount) -> tuple[str, str, str]:
    return item.namespace, item.name, item.uid


def _secret(credential: Credential, source: SecretSource) -> PulledBySecret:
    return PulledBySecret(*source, credential.login.hash)


def _account(source: AccountSource) -> PulledByAccount:
    return PulledByAccount(*source)
