"""Projected volumes: several sources whose files must not collide."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from trio_kubelet.api import v1
from trio_kubelet.api.uid_text import internal_json
from trio_kubelet.api.validation.formats import (
    LONGEST_LABEL,
    LONGEST_SUBDOMAIN,
    dns_subdomain,
    file_in_volume,
    qualified_name,
    signer_name,
)
from trio_kubelet.api.validation.metadata import MAX_ANNOTATIONS
from trio_kubelet.api.validation.problems import Problems
from trio_kubelet.api.validation.scheduling import validate_label_selector

_KeyCheck: TypeAlias = Callable[[v1.KeyToPath, str, Problems], None]
_FileCheck: TypeAlias = Callable[[v1.DownwardAPIVolumeFile, str, Problems], None]

_KEY_TYPES: Final = ("RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519")
_SHORTEST_TOKEN: Final = 600
_LONGEST_TOKEN: Final = 2**32
_LONGEST_SIGNER: Final = 2 * LONGEST_SUBDOMAIN + LONGEST_LABEL + 2
_HOUR: Final = 3600
_DAY: Final = 24 * _HOUR


class _Paths:
    """The paths used so far in one volume."""

    def __init__(self, here: str, problems: Problems) -> None:
        self._here, self._problems = here, problems
        self._used: set[str] = set()

    def use(self, path: str, name: str = "") -> None:
        """A file, and the object it is from if that is what the API names."""
        if path in self._used:
            self._problems.invalid(self._here, name or path, "conflicting duplicate paths")
        self._used.add(path)


def validate_projected(
    sources: Sequence[v1.VolumeProjection],
    here: str,
    problems: Problems,
    check_key: _KeyCheck,
    check_file: _FileCheck,
) -> None:
    """Check the sources; `here` is the path of the projected volume."""
    paths = _Paths(here, problems)
    for index, source in enumerate(sources):
        where = f"{here}.sources[{index}]"
        for keyed, name in ((source.secret, "secret"), (source.config_map, "configMap")):
            if keyed is None:
                continue
            if not keyed.name:
                problems.required(f"{where}.{name}.name")
            for position, item in enumerate(keyed.items or ()):
                check_key(item, f"{where}.{name}.items[{position}]", problems)
                if item.path:
                    paths.use(item.path, keyed.name)
        for file in (source.downward_api.items or ()) if source.downward_api is not None else ():
            check_file(file, f"{where}.downwardAPI", problems)
            if file.path:
                paths.use(file.path)
        if source.service_account_token is not None:
            _token(source.service_account_token, where, here, problems)
        if source.cluster_trust_bundle is not None:
            _trust_bundle(source.cluster_trust_bundle, f"{where}.clusterTrustBundle", problems)
            paths.use(source.cluster_trust_bundle.path)
        if source.pod_certificate is not None:
            _certificate(source.pod_certificate, f"{where}.podCertificate", problems, paths)
        given = sum(getattr(source, name) is not None for name in source.__struct_fields__)
        if given > 1:
            problems.forbidden(where, "may not specify more than 1 volume type per source")


def _token(token: v1.ServiceAccountTokenProjection, where: str, volume: str, problems: Problems) -> None:
    seconds = token.expiration_seconds or 0
    field = f"{where}.serviceAccountToken.expirationSeconds"
    if seconds < _SHORTEST_TOKEN:
        problems.invalid(field, seconds, "may not specify a duration less than 10 minutes")
    elif seconds > _LONGEST_TOKEN:
        problems.invalid(field, seconds, "may not specify a duration larger than 2^32 seconds")
    problems.named(f"{volume}.path", token.path, file_in_volume)


def _trust_bundle(bundle: v1.ClusterTrustBundleProjection, here: str, problems: Problems) -> None:
    if bundle.name is not None and bundle.signer_name is not None:
        why = "only one of name and signerName may be used"
        problems.invalid(here, internal_json("core.ClusterTrustBundleProjection", bundle), why)
    elif bundle.name is not None:
        if not bundle.name:
            problems.required(f"{here}.name", "must be a valid object name")
        for why in _bundle_name(bundle.name):
            problems.invalid(f"{here}.name", bundle.name, f"not a valid clustertrustbundlename: {why}")
        if bundle.label_selector is not None:
            selector = internal_json("v1.LabelSelector", bundle.label_selector)
            why = "labelSelector must be unset if name is specified"
            problems.invalid(f"{here}.labelSelector", selector, why)
    elif bundle.signer_name is not None:
        if not bundle.signer_name:
            problems.required(f"{here}.signerName", "must be a valid signer name")
        _signer(bundle.signer_name, f"{here}.signerName", problems)
        validate_label_selector(bundle.label_selector, f"{here}.labelSelector", problems)
    else:
        problems.required(here, "either name or signerName must be specified")
    problems.named(f"{here}.path", bundle.path, file_in_volume)


def _bundle_name(name: str) -> list[str]:
    """A bundle's name; one with a signer begins with that, with colons for slashes."""
    signer, colon, own_name = name.rpartition(":")
    if colon and not signer:
        return ['ClusterTrustBundle without signer name must not have ":" in its name']
    if "/" in signer:
        signer, prefix = signer.replace(":", "/"), signer.replace("/", ":") + ":"
        return [f"ClusterTrustBundle for signerName {signer} must be named with prefix {prefix}"]
    return dns_subdomain(own_name)


def _signer(signer: str, here: str, problems: Problems) -> None:
    if not signer:
        problems.required(here)
        return
    if len(signer.partition("/")[0].encode()) > LONGEST_SUBDOMAIN and signer.count("/") == 1:
        problems.too_long(here, LONGEST_SUBDOMAIN)
    for part, why in signer_name(signer):
        problems.invalid(here, part, why)
    if len(signer.encode()) > _LONGEST_SIGNER and signer.count("/") == 1:
        problems.too_long(here, _LONGEST_SIGNER)


def _certificate(
    certificate: v1.PodCertificateProjection, here: str, problems: Problems, paths: _Paths
) -> None:
    _signer(certificate.signer_name, f"{here}.signerName", problems)
    _user_annotations(certificate.user_annotations or {}, f"{here}.userAnnotations", problems)
    if certificate.key_type not in _KEY_TYPES:
        problems.unsupported(f"{here}.keyType", certificate.key_type, _KEY_TYPES)
    longest, field = certificate.max_expiration_seconds, f"{here}.maxExpirationSeconds"
    if longest is not None:
        domain = certificate.signer_name.partition("/")[0]
        of_kubernetes = domain == "kubernetes.io" or domain.endswith(".kubernetes.io")
        limit = _DAY if of_kubernetes else 91 * _DAY
        if longest < _HOUR:
            problems.invalid(field, longest, f"if provided, maxExpirationSeconds must be >= {_HOUR}")
        elif longest > limit:
            problems.invalid(field, longest, f"if provided, maxExpirationSeconds must be <= {limit}")
    files = {
        "credentialBundlePath": certificate.credential_bundle_path,
        "keyPath": certificate.key_path,
        "certificateChainPath": certificate.certificate_chain_path,
    }
    for field, path in files.items():
        if path:
            problems.check(f"{here}.{field}", path, file_in_volume)
            paths.use(path)
    if not any(files.values()):
        why = "specify at least one of credentialBundlePath, keyPath, and certificateChainPath"
        problems.required(here, why)


def _user_annotations(annotations: Mapping[str, str], here: str, problems: Problems) -> None:
    """Annotations of a request for a certificate: each with a domain, and as long as those of an object."""
    size = 0
    for key, value in annotations.items():
        size += len(key.encode()) + len(value.encode())
        name = key.lower()
        if not name:
            problems.required(here)
        elif problems.check(here, name, qualified_name) and "/" not in name:
            problems.invalid(here, name, 'must be a domain-prefixed key (such as "acme.io/foo")')
    if size > MAX_ANNOTATIONS:
        problems.too_long(here, MAX_ANNOTATIONS)
