"""How a node comes to be somebody to its cluster: by `--kubeconfig`, or by way of `--bootstrap-kubeconfig`.

The rules for the files are the kubelet's: a kubeconfig whose client certificate has not expired is used;
otherwise one is written that points to the certificate directory, and the bootstrap credentials are used to
ask for the certificate (`bootstrap`). With `rotateCertificates` the certificate is kept current from then on.

The library for certificates is imported only where there is a certificate to look into.
"""

from __future__ import annotations

import os
from typing import Final

import msgspec

from trio_kubelet.common.go_words import error_words
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.small_files import replace_small
from trio_kubelet.kube.certificates.files import PairFiles, stored_pair
from trio_kubelet.kube.kubeconfig import (
    IN_CLUSTER,
    ClientConfig,
    KubeconfigError,
    Source,
    client_config,
    read_kubeconfig,
)
from trio_kubelet.kube.tls import make_tls

log = get_logger(__name__)

PREFIX: Final = "kubelet-client"


class ClientPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How to be somebody to the API server."""

    config: ClientConfig
    """What to connect with."""
    managed: bool = False
    """Whether the client certificate is ours to get and to keep; else it is as `config` says."""
    rotate: bool = False
    kubeconfig: str = ""
    bootstrap: str = ""
    cert_dir: str = ""
    write_when_done: bool = False
    """Whether the kubeconfig is written only when there is a certificate."""


def plan_client(
    kubeconfig: str, bootstrap: str, cert_dir: str, rotate: bool, now_ns: int, environment: dict[str, str]
) -> ClientPlan:
    """What the flags and files ask for; may write the kubeconfig. Raises KubeconfigError. Blocking."""
    if kubeconfig == IN_CLUSTER:
        return ClientPlan(config=client_config(kubeconfig, environment))
    if not kubeconfig:
        raise KubeconfigError("--bootstrap-kubeconfig needs a --kubeconfig to write")
    if not bootstrap or _still_valid(kubeconfig, now_ns):
        return ClientPlan(
            config=read_kubeconfig(kubeconfig),
            managed=rotate,
            rotate=rotate,
            kubeconfig=kubeconfig,
            bootstrap=bootstrap,
            cert_dir=cert_dir,
        )
    pair = stored_pair(cert_dir, PREFIX, "current")
    try:
        config = _with_certificate(read_kubeconfig(bootstrap), pair)
    except KubeconfigError as exc:
        raise KubeconfigError(f"unable to load bootstrap kubeconfig: {exc}") from exc
    if rotate:
        write_kubeconfig(config, pair.certificate, kubeconfig)
    return ClientPlan(
        config=config,
        managed=True,
        rotate=rotate,
        kubeconfig=kubeconfig,
        bootstrap=bootstrap,
        cert_dir=cert_dir,
        write_when_done=not rotate,
    )


def _still_valid(path: str, now_ns: int) -> bool:
    """Whether a kubeconfig has a client certificate that can be used and has not expired."""
    if not os.path.exists(path):
        return False
    from trio_kubelet.kube.certificates.pair import describe, parse_certificates

    try:
        config = read_kubeconfig(path)
        make_tls(config)
        certificates = parse_certificates(config.client_certificate.read(), path)
    except (KubeconfigError, OSError) as exc:
        log.warning("The kubeconfig cannot be used, bootstrapping anew", kubeconfig=path, err=exc)
        return False
    if any(describe(certificate).expired(now_ns) for certificate in certificates):
        log.warning("The client certificate has expired, bootstrapping anew", kubeconfig=path)
        return False
    return True


def _with_certificate(config: ClientConfig, files: PairFiles) -> ClientConfig:
    """The same server, but with this certificate and nothing else as identity."""
    return msgspec.structs.replace(
        config,
        client_certificate=Source(file=files.certificate),
        client_key=Source(file=files.key),
        token="",
        token_file="",
        exec_plugin=None,
    )


def write_kubeconfig(config: ClientConfig, pem_path: str, path: str) -> None:
    """Writes a kubeconfig as the kubelet lays it out. Raises KubeconfigError. Blocking."""
    try:
        os.makedirs(os.path.dirname(os.path.abspath(path)), mode=0o755, exist_ok=True)
        replace_small(path, render_kubeconfig(config, pem_path), mode=0o600)
    except OSError as exc:
        raise KubeconfigError(f"{path}: cannot be written: {error_words(exc)}") from exc


def render_kubeconfig(config: ClientConfig, pem_path: str) -> bytes:
    """One cluster, one user with certificate and key in `pem_path`, one context."""
    from trio_kubelet.api.yaml_writer import yaml_bytes  # seldom written

    cluster: dict[str, object] = {"server": config.server}
    if config.insecure:
        cluster["insecure-skip-tls-verify"] = True
    if config.ca.file:
        cluster["certificate-authority"] = config.ca.file
    elif config.ca.data:
        cluster["certificate-authority-data"] = config.ca.base64()
    # The kubelet forgets these two; without them the server could not be reached again.
    if config.tls_server_name:
        cluster["tls-server-name"] = config.tls_server_name
    if config.proxy_url:
        cluster["proxy-url"] = config.proxy_url
    tree = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "default-cluster", "cluster": cluster}],
        "contexts": [
            {
                "name": "default-context",
                "context": {"cluster": "default-cluster", "namespace": "default", "user": "default-auth"},
            }
        ],
        "current-context": "default-context",
        "users": [{"name": "default-auth", "user": {"client-certificate": pem_path, "client-key": pem_path}}],
    }
    return yaml_bytes(tree)
