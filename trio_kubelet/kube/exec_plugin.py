"""Credentials from a command, by client-go's exec plugin protocol (KEP-541).

The command gets an ExecCredential with the cluster's data in its environment and prints one with a token
or a client certificate. What it prints is never logged.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from typing import Any

import msgspec
import trio

from trio_kubelet.api.timestamps import ZERO_TIME, parse_rfc3339
from trio_kubelet.common.deep_json import decode_flat
from trio_kubelet.common.go_words import error_words
from trio_kubelet.common.lanes import CERTIFICATES
from trio_kubelet.common.programs import ProgramFailed, redacted, run_program
from trio_kubelet.kube.kubeconfig import ClientConfig, ExecPlugin, can_be_sent

TIMEOUT = 60.0
_INTERNAL = "client_internal_error"
API_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


class ExecCredential(msgspec.Struct, frozen=True, kw_only=True):
    """What a plugin said; without `expires_ns` it is good until it is refused."""

    token: str = ""
    certificate: bytes = b""
    key: bytes = b""
    expires_ns: int | None = None

    def __repr__(self) -> str:  # never what it holds
        return f"ExecCredential(expires_ns={self.expires_ns})"


async def run_exec_plugin(
    plugin: ExecPlugin, config: ClientConfig, called: Callable[[int, str], object] = lambda code, status: None
) -> ExecCredential:
    """Runs a credential plugin. `called` is told its exit code and what became of the call, in client-go's
    words. Raises OSError, with what to do about it, when it fails.
    """
    hint = f" ({plugin.install_hint})" if plugin.install_hint else ""
    if plugin.interactive_mode == "Always":
        raise OSError(f"credential plugin {plugin.command}: needs a terminal, an agent has none{hint}")
    environment = {
        **os.environ,
        **{e["name"]: e.get("value", "") for e in plugin.env or []},
        "KUBERNETES_EXEC_INFO": await CERTIFICATES.run(exec_info, plugin, config),
    }
    command, output = [plugin.command, *(plugin.args or [])], b""
    try:
        with trio.fail_after(TIMEOUT):
            output = await run_program(command, environment, b"")
    except ProgramFailed as failed:
        called(*((1, _INTERNAL) if failed.code is None else (failed.code, "plugin_execution_error")))
        said = redacted(failed.complaint, _secrets(failed.output))
        raise OSError(f"credential plugin {plugin.command}: {failed}: {said}{hint}") from None
    except trio.TooSlowError as exc:
        called(1, _INTERNAL)
        raise OSError(f"credential plugin {plugin.command}: no answer in time{hint}") from exc
    except OSError as exc:
        called(1, "plugin_not_found_error")
        raise OSError(f"credential plugin: {error_words(exc, 'fork/exec')}{hint}") from exc
    called(0, "no_error")
    return parse_exec_credential(output, plugin, hint)


def exec_info(plugin: ExecPlugin, config: ClientConfig) -> str:
    """The ExecCredential a plugin is asked with. Raises OSError. Blocking: may read the CA file."""
    spec: dict[str, Any] = {"interactive": False}
    if plugin.provide_cluster_info:
        cluster: dict[str, Any] = {"server": config.server}
        if config.tls_server_name:
            cluster["tls-server-name"] = config.tls_server_name
        if config.insecure:
            cluster["insecure-skip-tls-verify"] = True
        if config.ca:
            cluster["certificate-authority-data"] = base64.b64encode(config.ca.read()).decode()
        if config.proxy_url:
            cluster["proxy-url"] = config.proxy_url
        cluster["config"] = plugin.config
        spec["cluster"] = cluster
    return json.dumps({"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec})


def parse_exec_credential(output: bytes, plugin: ExecPlugin, hint: str = "") -> ExecCredential:
    """What a plugin printed. Raises OSError; the text never holds the credential."""
    try:
        answer = decode_flat(output, dict[str, Any])
        if answer["kind"] != "ExecCredential" or answer["apiVersion"] != plugin.api_version:
            raise ValueError
        status = answer["status"]
        expires = status.get("expirationTimestamp")
        token = status.get("token") or ""
        if not can_be_sent(token):
            raise ValueError
        credential = ExecCredential(
            token=token,
            certificate=(status.get("clientCertificateData") or "").encode(),
            key=(status.get("clientKeyData") or "").encode(),
            expires_ns=parse_rfc3339(expires) if expires and expires != ZERO_TIME else None,
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        raise OSError(
            f"credential plugin {plugin.command}: no ExecCredential of {plugin.api_version}{hint}"
        ) from None
    if bool(credential.certificate) != bool(credential.key):
        raise OSError(f"credential plugin {plugin.command}: a certificate and its key come together{hint}")
    if not credential.token and not credential.certificate:
        raise OSError(f"credential plugin {plugin.command}: no token and no certificate{hint}")
    return credential


def _secrets(output: bytes) -> list[str]:
    """What a plugin that failed has printed all the same."""
    try:
        status = decode_flat(output, dict[str, Any])["status"]
        return [str(status.get(name) or "") for name in ("token", "clientKeyData")]
    except (ValueError, KeyError, AttributeError):
        return []
