"""Projected volumes: several sources whose files must not collide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from trio_kubelet.api import v1
from trio_kubelet.api.validation.formats import dns_label, dns_subdomain, file_in_volume, qualified_name
from trio_kubelet.api.validation.problems import Problems
from trio_kubelet.api.validation.scheduling import validate_label_selector

_KeyCheck: TypeAlias = Callable[[v1.KeyToPath, str, Problems], None]
_FileCheck: TypeAlias = Callable[[v1.DownwardAPIVolumeFile, str, Problems], None]

_KEY_TYPES: Final = ("RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519")
_LONGEST_TOKEN: Final = 2**32
_HOUR: Final = 3600
_DAY: Final = 24 * _HOUR


class _Paths:
    """The paths used so far in one volume."""

    def __init__(self, here: str, problems: Problems) -> None:
        self._here, self._problems = here, problems
        self._used: set[str] = set()

    def use(self, path: str) -> None:
        if path in self._used:
            self._problems.invalid(self._here, path, "is the path of two files")
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
                    paths.use(item.path)
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
            problems.forbidden(where, "a projection has one source")


def _token(token: v1.ServiceAccountTokenProjection, where: str, volume: str, problems: Problems) -> None:
    seconds = token.expiration_seconds or 0
    if not 600 <= seconds <= _LONGEST_TOKEN:
        field = f"{where}.serviceAccountToken.expirationSeconds"
        problems.invalid(field, seconds, f"must be between 600 and {_LONGEST_TOKEN}")
    problems.named(f"{volume}.path", token.path, file_in_volume)


def _trust_bundle(bundle: v1.ClusterTrustBundleProjection, here: str, problems: Problems) -> None:
    if bundle.name is not None and bundle.signer_name is not None:
        problems.invalid(here, bundle.name, "name and signerName exclude each other")
    elif bundle.name is not None:
        if not bundle.name:
            problems.required(f"{here}.name")
        own_name = bundle.name.rpartition(":")[2]
        problems.check(f"{here}.name", own_name, dns_subdomain)
        if bundle.label_selector is not None:
            problems.invalid(f"{here}.labelSelector", "labelSelector", "goes with signerName only")
    elif bundle.signer_name is not None:
        _signer(bundle.signer_name, f"{here}.signerName", problems)
        validate_label_selector(bundle.label_selector, f"{here}.labelSelector", problems)
    else:
        problems.required(here, "name or signerName")
    problems.named(f"{here}.path", bundle.path, file_in_volume)


def _signer(signer: str, here: str, problems: Problems) -> None:
    """`example.com/name`: a domain of two labels at least, and a path."""
    if not signer:
        problems.required(here)
        return
    domain, slash, path = signer.partition("/")
    if not slash or "/" in path:
        problems.invalid(here, signer, "must have the form example.com/name")
        return
    labels = domain.split(".")
    if len(labels) < 2 or any(map(dns_label, labels)) or any(map(dns_subdomain, path.split("."))):
        problems.invalid(here, signer, "must have the form example.com/name")


def _certificate(
    certificate: v1.PodCertificateProjection, here: str, problems: Problems, paths: _Paths
) -> None:
    _signer(certificate.signer_name, f"{here}.signerName", problems)
    for key in certificate.user_annotations or {}:
        if qualified_name(key.lower()) or "/" not in key:
            problems.invalid(f"{here}.userAnnotations", key, "must be a name with a domain")
    if certificate.key_type not in _KEY_TYPES:
        problems.unsupported(f"{here}.keyType", certificate.key_type, _KEY_TYPES)
    longest = certificate.max_expiration_seconds
    if longest is not None:
        domain = certificate.signer_name.partition("/")[0]
        of_kubernetes = domain == "kubernetes.io" or domain.endswith(".kubernetes.io")
        limit = _DAY if of_kubernetes else 91 * _DAY
        if not _HOUR <= longest <= limit:
            problems.invalid(f"{here}.maxExpirationSeconds", longest, f"must be between {_HOUR} and {limit}")
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
        problems.required(here, "credentialBundlePath, keyPath or certificateChainPath")
