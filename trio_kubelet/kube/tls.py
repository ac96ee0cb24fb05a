"""TLS contexts from what a kubeconfig names."""

from __future__ import annotations

import os
import ssl
import tempfile
from contextlib import suppress

from trio_kubelet.kube.certificates.files import pem_contents
from trio_kubelet.kube.exec_plugin import ExecCredential
from trio_kubelet.kube.kubeconfig import ClientConfig, Source


def make_tls(config: ClientConfig, credential: ExecCredential | None = None) -> ssl.SSLContext | None:
    """The context for a server, None for plain HTTP. Raises OSError naming what is wrong. Blocking."""
    if not config.server.startswith("https://"):
        return None
    context = client_context(config.ca)
    if config.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if credential is not None and credential.certificate:
        _load_chain(context, Source(data=credential.certificate), Source(data=credential.key))
    elif config.client_certificate:
        _load_chain(context, config.client_certificate, config.client_key)
    return context


def client_context(ca: Source) -> ssl.SSLContext:
    """A verifying context; without `ca` the system's authorities count, but not in place of an empty file.
    Raises OSError. Blocking.
    """
    if ca:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _trust(context, ca)
    else:
        context = ssl.create_default_context()
    verify_as_go(context)
    context.set_alpn_protocols(["http/1.1"])
    return context


def _trust(context: ssl.SSLContext, ca: Source) -> None:
    """As Go's `AppendCertsFromPEM`: what stands between the certificates, and those that cannot be read, are
    passed over.
    """
    trusted = False
    for content in pem_contents(ca.read()):
        with suppress(ssl.SSLError):
            context.load_verify_locations(cadata=content)
            trusted = True
    if not trusted:
        raise OSError(f"{ca.file or 'certificate authority data'}: has no certificate of an authority")


def verify_as_go(context: ssl.SSLContext) -> None:
    """Has certificates judged as Go's `crypto/x509` does.

    Each certificate in the file of authorities is an anchor, also an intermediate whose root is not there.
    And authorities need not have all that RFC 5280 asks of them, which Python 3.13 wants and clusters' own
    ones often lack. The name of a server is one of its alternative names: a common name does not count.
    """
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.hostname_checks_common_name = False


def _load_chain(context: ssl.SSLContext, certificate: Source, key: Source) -> None:
    """Python loads keys from files only; what stands inline goes through one nobody else can read."""
    try:
        if certificate.file and (key.file or not key):
            context.load_cert_chain(certificate.file, key.file or None, password=_no_password)
            return
        directory = "/dev/shm" if os.path.isdir("/dev/shm") else None  # memory rather than a disk
        with tempfile.NamedTemporaryFile(prefix="trio-kubelet-", dir=directory) as file:  # mode 0600
            file.write(certificate.read() + b"\n" + key.read())
            file.flush()
            context.load_cert_chain(file.name, password=_no_password)
    except OSError as exc:  # Python's own text names no file
        where = f"{certificate.file or 'client certificate data'}, {key.file or 'its key'}"
        why = exc.reason if isinstance(exc, ssl.SSLError) else exc.strerror
        raise OSError(f"{where}: {why or exc}") from exc


def _no_password() -> bytes:
    """Without this OpenSSL would ask on the terminal for an encrypted key's password."""
    raise OSError("the client key is encrypted; an agent cannot ask for its password")
