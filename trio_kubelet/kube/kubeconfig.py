"""Reading a kubeconfig, or what a pod finds of its cluster: where the API server is and who we are to it.

Pure parsing over a few file reads; what rotates (tokens in files, exec plugins, certificate files) stays a
path or a command here and is read when used, in `credentials`.
"""

from __future__ import annotations

import base64
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from trio_kubelet.api import yaml
from trio_kubelet.api.yaml_scalars import decode_base64
from trio_kubelet.common.go_words import os_words

IN_CLUSTER = "in-cluster"
"""In place of a path: what a process in a pod finds of its cluster."""
IN_CLUSTER_DIR = "/var/run/secrets/kubernetes.io/serviceaccount"


class KubeconfigError(Exception):
    """A kubeconfig that cannot be used; the text names file, field and reason."""


class Source(msgspec.Struct, frozen=True):
    """Bytes that stand in the kubeconfig or in a file (which may be replaced while we run)."""

    data: bytes = b""
    file: str = ""

    def __bool__(self) -> bool:
        return bool(self.data or self.file)

    def __repr__(self) -> str:  # never the data
        return f"Source({'inline' if self.data else self.file!r})"

    def read(self) -> bytes:
        """The bytes as they are now. Raises OSError. Blocking: for a thread."""
        if self.data or not self.file:
            return self.data
        with open(self.file, "rb") as file:
            return file.read()

    def base64(self) -> str:
        """The inline bytes as a kubeconfig holds them."""
        return base64.b64encode(self.data).decode()


class ExecPlugin(msgspec.Struct, frozen=True, rename="camel"):
    """A command that prints an ExecCredential (client-go's exec credential plugins)."""

    command: str = ""
    args: list[str] | None = None
    env: list[dict[str, str]] | None = None
    api_version: str = ""
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = ""
    config: Any = None
    """What the cluster has to say to plugins, for those that are told of the cluster."""

    def __repr__(self) -> str:  # its environment may hold credentials
        return f"ExecPlugin({self.command!r})"


class ClientConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach and convince an API server."""

    server: str
    ca: Source = Source()
    insecure: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""
    client_certificate: Source = Source()
    client_key: Source = Source()
    token: str = ""
    token_file: str = ""
    exec_plugin: ExecPlugin | None = None

    def __repr__(self) -> str:  # never the token
        return f"ClientConfig({self.server!r})"


_WITHOUT_MODE: Final = ("client.authentication.k8s.io/v1beta1", "client.authentication.k8s.io/v1alpha1")
"""In these versions of the protocol a plugin need not say whether it wants a terminal."""

_SCHEMES: Final = ("http", "https")
_NO_PASSWORDS: Final = "username and password are not accepted by API servers any more"
_PLUGIN_EXTENSION: Final = "client.authentication.k8s.io/exec"
"""The name under which a cluster says something to plugins."""


class _Extension(msgspec.Struct):
    name: str = ""
    extension: Any = None


class _Cluster(msgspec.Struct, rename="kebab"):
    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""
    extensions: list[_Extension] = []


class _User(msgspec.Struct, rename="kebab"):
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    token: str = ""
    token_file: str = msgspec.field(name="tokenFile", default="")
    username: str = ""
    password: str = ""
    as_: str = msgspec.field(name="as", default="")
    as_uid: str = ""
    as_groups: list[str] = []
    as_user_extra: dict[str, Any] = {}
    auth_provider: Any = None
    exec_: ExecPlugin | None = msgspec.field(name="exec", default=None)


class _Context(msgspec.Struct):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


class _NamedCluster(msgspec.Struct):
    name: str = ""
    cluster: _Cluster = msgspec.field(default_factory=_Cluster)


class _NamedUser(msgspec.Struct):
    name: str = ""
    user: _User = msgspec.field(default_factory=_User)


class _NamedContext(msgspec.Struct):
    name: str = ""
    context: _Context = msgspec.field(default_factory=_Context)


class _Kubeconfig(msgspec.Struct, rename="kebab"):
    api_version: str = msgspec.field(name="apiVersion", default="")
    kind: str = "Config"
    clusters: list[_NamedCluster] = []
    users: list[_NamedUser] = []
    contexts: list[_NamedContext] = []
    current_context: str = ""


def read_kubeconfig(path: str) -> ClientConfig:
    """The client configuration of a file's current context. Raises KubeconfigError. Blocking."""
    try:
        with open(path, "rb") as file:
            return parse_kubeconfig(file.read(), path)
    except OSError as exc:
        raise KubeconfigError(f"{path}: {os_words(exc)}") from exc


def parse_kubeconfig(data: bytes, path: str) -> ClientConfig:
    """The same from bytes; relative paths in it are relative to the directory of `path`."""
    try:
        tree: Any = yaml.load(data)
        config = msgspec.convert(_checked(tree), _Kubeconfig)
    except (ValueError, msgspec.ValidationError) as exc:
        raise KubeconfigError(f"{path}: {exc}") from exc
    if config.api_version not in ("", "v1"):
        raise KubeconfigError(f'{path}: apiVersion: expected "v1", got "{config.api_version}"')
    if config.kind != "Config":
        raise KubeconfigError(f'{path}: kind: expected "Config", got "{config.kind}"')
    for field in ("contexts", "clusters", "users"):
        names = Counter(each.name for each in getattr(config, field))
        if twice := [name for name, times in names.items() if times > 1]:
            raise KubeconfigError(f'{path}: {field}: more than one is named "{twice[0]}"')
    contexts = {c.name: c.context for c in config.contexts}
    context = contexts.get(config.current_context)
    if context is None:
        raise KubeconfigError(f'{path}: current-context: there is no context "{config.current_context}"')
    cluster = {c.name: c.cluster for c in config.clusters}.get(context.cluster)
    if cluster is None or not cluster.server:
        raise KubeconfigError(f'{path}: contexts: there is no cluster "{context.cluster}" with a server')
    users = {u.name: u.user for u in config.users}
    if context.user and context.user not in users:
        raise KubeconfigError(f'{path}: contexts: there is no user "{context.user}"')
    user = users.get(context.user, _User())
    for field, problem in (("clusters", _cluster_problem(cluster)), ("users", _user_problem(user))):
        if problem:
            raise KubeconfigError(f"{path}: {field}: {problem}")
    server, base = _with_scheme(cluster), os.path.dirname(os.path.abspath(path))
    proxies = (*_SCHEMES, "socks5")
    for field, url, schemes in (("server", server, _SCHEMES), ("proxy-url", cluster.proxy_url, proxies)):
        if url and (problem := _url_problem(url, schemes)):
            raise KubeconfigError(f"{path}: clusters: {field}: {problem}")
    if "@" in urlsplit(server).netloc:
        raise KubeconfigError(f"{path}: clusters: server: {_NO_PASSWORDS}")
    if not server.lower().startswith("https://"):
        user = _User()  # as client-go: nothing secret goes where anybody can read it

    def source(inline: str, file: str, field: str) -> Source:
        if not inline:
            return Source(file=os.path.join(base, file) if file else "")
        try:
            return Source(data=decode_base64(inline))
        except ValueError as exc:
            raise KubeconfigError(f"{path}: {field}: not base64: {exc}") from exc

    return ClientConfig(
        server=server.partition("#")[0].partition("?")[0].rstrip("/"),
        ca=source(
            cluster.certificate_authority_data, cluster.certificate_authority, "certificate-authority-data"
        ),
        insecure=cluster.insecure_skip_tls_verify,
        tls_server_name=cluster.tls_server_name,
        proxy_url=cluster.proxy_url,
        client_certificate=source(
            user.client_certificate_data, user.client_certificate, "client-certificate-data"
        ),
        client_key=source(user.client_key_data, user.client_key, "client-key-data"),
        token=user.token,
        token_file=os.path.join(base, user.token_file) if user.token_file else "",
        exec_plugin=_plugin(user, cluster, base),
    )


def can_be_sent(token: str) -> bool:
    """Whether a token can stand in a header: what the libraries say of one that cannot, shows it."""
    return token.isascii() and token.isprintable()


def _cluster_problem(cluster: _Cluster) -> str:
    """What client-go refuses of a cluster beside its addresses; "" if there is nothing."""
    if cluster.certificate_authority and cluster.certificate_authority_data:
        return "certificate-authority-data and certificate-authority are both specified"
    if cluster.insecure_skip_tls_verify and (
        cluster.certificate_authority or cluster.certificate_authority_data
    ):
        return "insecure-skip-tls-verify: not allowed with a certificate authority"
    return ""


def _user_problem(user: _User) -> str:
    """What client-go refuses of a user, and what is not done here; "" if there is nothing."""
    if user.username or user.password:
        return _NO_PASSWORDS
    if user.as_ or user.as_uid or user.as_groups or user.as_user_extra:
        return "as: an agent does not act in the name of others"
    if user.auth_provider is not None:
        return "auth-provider: there is none any more, see exec"
    if not can_be_sent(user.token):
        return "token: has characters that no header may have"
    if user.client_certificate or user.client_certificate_data:
        if user.client_certificate and user.client_certificate_data:
            return "client-certificate-data and client-certificate are both specified"
        if user.client_key and user.client_key_data:
            return "client-key-data and client-key are both specified"
        if not (user.client_key or user.client_key_data):
            return "client-key-data or client-key must be specified for a client certificate"
    problem = _plugin_problem(user.exec_) if user.exec_ is not None else ""
    return problem and f"exec: {problem}"


def _plugin_problem(plugin: ExecPlugin) -> str:
    if not plugin.command:
        return "command is missing"
    if not plugin.api_version:
        return "apiVersion is missing"
    if not all(variable.get("name") for variable in plugin.env or []):
        return "env: a variable has no name"
    if not plugin.interactive_mode:
        return "" if plugin.api_version in _WITHOUT_MODE else "interactiveMode is missing"
    if plugin.interactive_mode not in ("Never", "IfAvailable", "Always"):
        return f'interactiveMode: "{plugin.interactive_mode}" is none'
    return ""


def _with_scheme(cluster: _Cluster) -> str:
    """client-go takes a bare host too: over TLS when there is anything to verify it with."""
    if "://" in cluster.server:
        return cluster.server
    verified = cluster.certificate_authority or cluster.certificate_authority_data
    return f"{'https' if verified or cluster.insecure_skip_tls_verify else 'http'}://{cluster.server}"


def _url_problem(url: str, schemes: Sequence[str] = _SCHEMES) -> str:
    """Why nothing can be asked there, without the address, in which a password may stand; "" if it can be.

    Whether there is such a host is not told.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return "it is no URL"
    try:
        _ = parts.port
    except ValueError:
        return "its port is no number up to 65535"
    if not url.isprintable() or " " in url:
        return "it has characters that no URL has"
    if parts.scheme not in schemes:
        return f"the scheme is {parts.scheme}, but has to be {' or '.join(schemes)}"
    return "" if parts.hostname else "it names no host"


def _plugin(user: _User, cluster: _Cluster, base: str) -> ExecPlugin | None:
    """The plugin to run: none where the kubeconfig says who we are, as client-go prefers that.

    A command with a slash is relative to the kubeconfig, one without is looked for in PATH.
    """
    plugin = user.exec_
    if plugin is None or user.token or user.token_file:
        return None
    if user.client_certificate or user.client_certificate_data:
        return None
    command = os.path.join(base, plugin.command) if "/" in plugin.command else plugin.command
    config = {each.name: each.extension for each in cluster.extensions}.get(_PLUGIN_EXTENSION)
    return msgspec.structs.replace(plugin, command=command, config=config)


def client_config(kubeconfig: str, environment: dict[str, str]) -> ClientConfig:
    """What `--kubeconfig` names: a path, or `in-cluster`. Raises KubeconfigError. Blocking."""
    return in_cluster(environment) if kubeconfig == IN_CLUSTER else read_kubeconfig(kubeconfig)


def in_cluster(environment: dict[str, str], directory: str = IN_CLUSTER_DIR) -> ClientConfig:
    """The client configuration of a process in a pod. Raises KubeconfigError outside of one."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise KubeconfigError("not in a cluster: KUBERNETES_SERVICE_HOST and _PORT are not set")
    shown = f"[{host}]" if ":" in host else host
    server = f"https://{shown}:{port}"
    if problem := _url_problem(server):
        raise KubeconfigError(f"KUBERNETES_SERVICE_HOST and _PORT: {problem}")
    return ClientConfig(
        server=server,
        ca=Source(file=os.path.join(directory, "ca.crt")),
        token_file=os.path.join(directory, "token"),
    )


def _checked(tree: Any, at: str = "") -> Any:
    """`null` counts as absent, as for Go. Raises ValueError for texts with a zero byte: the system has no
    file, host or program with such a name, and each call would say so anew.
    """
    if isinstance(tree, dict):
        return {key: _checked(value, f"{at}.{key}") for key, value in tree.items() if value is not None}
    if isinstance(tree, list):
        return [_checked(item, f"{at}[{index}]") for index, item in enumerate(tree)]
    if isinstance(tree, str) and "\0" in tree:
        raise ValueError(f"{at.removeprefix('.')}: has a zero byte")
    return tree
