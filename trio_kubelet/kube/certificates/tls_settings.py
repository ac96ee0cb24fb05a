"""`tlsMinVersion`, `tlsCipherSuites` and `tlsCurvePreferences` in OpenSSL's words.

The configuration uses Go's names and numbers. Cipher suites of TLS 1.3 cannot be chosen, there as here.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence

import msgspec

_VERSIONS = {
    "": ssl.TLSVersion.TLSv1_2,
    "VersionTLS10": ssl.TLSVersion.TLSv1,
    "VersionTLS11": ssl.TLSVersion.TLSv1_1,
    "VersionTLS12": ssl.TLSVersion.TLSv1_2,
    "VersionTLS13": ssl.TLSVersion.TLSv1_3,
}

_TLS_1_3 = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")

_INSECURE = {
    "TLS_RSA_WITH_RC4_128_SHA": "RC4-SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA": "DES-CBC3-SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA": "AES128-SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA": "AES256-SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256": "AES128-SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA": "ECDHE-ECDSA-RC4-SHA",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA": "ECDHE-RSA-RC4-SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA": "ECDHE-RSA-DES-CBC3-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256": "ECDHE-ECDSA-AES128-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256": "ECDHE-RSA-AES128-SHA256",
}

_SUITES = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    # Go's old names of the two above.
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305": "ECDHE-ECDSA-CHACHA20-POLY1305",
}

_CURVES = {
    23: "prime256v1",
    24: "secp384r1",
    25: "secp521r1",
    29: "X25519",
    4587: "SecP256r1MLKEM768",
    4588: "X25519MLKEM768",
    4589: "SecP384r1MLKEM1024",
}


class TLSSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What to make of every server context; `insecure` are the chosen suites a log should warn about."""

    minimum: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
    ciphers: str = ""
    curve: str = ""
    insecure: tuple[str, ...] = ()

    def context(self) -> ssl.SSLContext:
        """A server context without a certificate. Raises OSError when OpenSSL has none of the suites."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = self.minimum
        try:
            if self.ciphers:
                context.set_ciphers(self.ciphers)
            if self.curve:
                context.set_ecdh_curve(self.curve)
        except (ssl.SSLError, ValueError) as exc:
            raise OSError(f"tlsCipherSuites, tlsCurvePreferences: not in this OpenSSL: {exc}") from exc
        context.set_alpn_protocols(["http/1.1"])
        return context


def tls_settings(minimum: str, suites: Sequence[str], curves: Sequence[int] = ()) -> TLSSettings:
    """The settings for values of a KubeletConfiguration. Raises ValueError naming field and value.

    Python can name one curve only: that of `curves` if it is the only one, else OpenSSL's own choice stands.
    """
    version = _VERSIONS.get(minimum)
    if version is None:
        raise ValueError(f'unknown tls version "{minimum}"')
    chosen = list[str]()
    for suite in suites:
        name = _SUITES.get(suite) or _INSECURE.get(suite)
        if name is not None:
            chosen.append(name)
        elif suite not in _TLS_1_3:
            raise ValueError(f"Cipher suite {suite} not supported or doesn't exist")
    for curve in curves:
        if curve not in _CURVES:
            raise ValueError(f"tlsCurvePreferences: unknown curve {curve}")
        if curves.count(curve) > 1:
            raise ValueError(f"tlsCurvePreferences: curve {curve} is there more than once")
    if suites and not chosen:  # only suites of TLS 1.3 means nothing older
        version = ssl.TLSVersion.TLSv1_3
    ciphers = ":".join(chosen)
    old = version < ssl.TLSVersion.TLSv1_2
    if old or any(suite in _INSECURE for suite in suites):  # else OpenSSL refuses what was asked for
        ciphers = f"{ciphers or 'DEFAULT'}:@SECLEVEL=0"
    return TLSSettings(
        minimum=version,
        ciphers=ciphers,
        curve=_CURVES[curves[0]] if len(curves) == 1 else "",
        insecure=tuple(suite for suite in suites if suite in _INSECURE),
    )
