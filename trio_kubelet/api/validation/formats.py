"""The formats names and values must have.

Each function gives what is wrong, in the words of Kubernetes and one sentence for each thing; nothing where
all is well.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Final

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = rf"{_LABEL}(\.{_LABEL})*"
_LABEL_UNDERSCORE: Final = "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
_SUBDOMAIN_UNDERSCORE: Final = rf"{_LABEL_UNDERSCORE}(\.{_LABEL_UNDERSCORE})*"
_NAME_PART: Final = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_SYSCTL_SEGMENT: Final = "[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
_SYSCTL: Final = rf"({_SYSCTL_SEGMENT}[\./])*{_SYSCTL_SEGMENT}"
_CONFIG_KEY: Final = "[-._a-zA-Z0-9]+"
_HEADER: Final = "[-A-Za-z0-9]+"
_NEEDLESS_ZEROS: Final = re.compile(r"(?<![0-9A-Fa-f])0+(?=[0-9A-Fa-f])")

LONGEST_SUBDOMAIN: Final = 253
LONGEST_LABEL: Final = 63
_LONGEST_PORT_NAME: Final = 15
_MAX_INT32: Final = 2**31 - 1
_LONGEST_DIRECTORY: Final = 200

_LABEL_RULE: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start"
    " and end with an alphanumeric character"
)
_SUBDOMAIN_RULE: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, {}'-' or '.', and"
    " must start and end with an alphanumeric character"
)
_NAME_RULE: Final = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric"
    " character"
)
_LABEL_VALUE_RULE: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must"
    " start and end with an alphanumeric character"
)


def between(low: int, high: int) -> str:
    """That a number is out of its range."""
    return f"must be between {low} and {high}, inclusive"


def _longer(limit: int, unit: str = "characters") -> str:
    return f"must be no more than {limit} {unit}"


def _unmatched(rule: str, pattern: str, *examples: str) -> str:
    shown = " or ".join(f"'{example}', " for example in examples)
    return f"{rule} (e.g. {shown}regex used for validation is '{pattern}')"


_NAME_SENTENCE: Final = _unmatched(_NAME_RULE, _NAME_PART, "MyName", "my.name", "123-abc")


def dns_label(value: str) -> list[str]:
    """A name of one DNS label (RFC 1123), as pods' containers and volumes have it."""
    wrong = [_longer(LONGEST_LABEL)] if len(value.encode()) > LONGEST_LABEL else []
    if not re.fullmatch(_LABEL, value):
        rule = _unmatched(_LABEL_RULE, _LABEL, "my-name", "123-abc")
        wrong.append("must not contain dots" if re.fullmatch(_SUBDOMAIN, value) else rule)
    return wrong


def dns_subdomain(value: str) -> list[str]:
    """DNS labels joined by dots, as most objects' names."""
    return _subdomain(value, _SUBDOMAIN, "")


def dns_subdomain_underscore(value: str) -> list[str]:
    """A DNS search domain, which may contain underscores."""
    return _subdomain(value, _SUBDOMAIN_UNDERSCORE, "'_', ")


def _subdomain(value: str, pattern: str, besides: str, unit: str = "characters") -> list[str]:
    wrong = [_longer(LONGEST_SUBDOMAIN, unit)] if len(value.encode()) > LONGEST_SUBDOMAIN else []
    if not re.fullmatch(pattern, value):
        wrong.append(_unmatched(_SUBDOMAIN_RULE.format(besides), pattern, "example.com"))
    return wrong


def qualified_name(value: str) -> list[str]:
    """`name` or `domain/name`: keys of labels and annotations, resources, conditions."""
    parts = value.split("/")
    if len(parts) > 2:
        prefix = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        return [f"a valid label key {_NAME_SENTENCE} {prefix}"]
    wrong: list[str] = []
    if len(parts) == 2:
        problems = _subdomain(parts[0], _SUBDOMAIN, "", "bytes") if parts[0] else ["must be non-empty"]
        wrong += [f"prefix part {problem}" for problem in problems]
    name = parts[-1]
    if not name:
        wrong.append("name part must be non-empty")
    elif len(name.encode()) > LONGEST_LABEL:
        wrong.append(f"name part {_longer(LONGEST_LABEL, 'bytes')}")
    if not re.fullmatch(_NAME_PART, name):
        wrong.append(f"name part {_NAME_SENTENCE}")
    return wrong


def any_case_name(value: str) -> list[str]:
    """The same, capital letters in the domain too, as keys of annotations."""
    return qualified_name(value.lower())


def label_value(value: str) -> list[str]:
    wrong = [_longer(LONGEST_LABEL, "bytes")] if len(value.encode()) > LONGEST_LABEL else []
    if value and not re.fullmatch(_NAME_PART, value):
        wrong.append(_unmatched(_LABEL_VALUE_RULE, f"({_NAME_PART})?", "MyValue", "my_value", "12345"))
    return wrong


def port_number(value: int) -> list[str]:
    return [] if 1 <= value <= 65535 else [between(1, 65535)]


def port_name(value: str) -> list[str]:
    wrong = [_longer(_LONGEST_PORT_NAME)] if len(value.encode()) > _LONGEST_PORT_NAME else []
    if not re.fullmatch(r"[-a-z0-9]+", value):
        wrong.append("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    if not re.search(r"[a-z]", value):
        wrong.append("must contain at least one letter (a-z)")
    if "--" in value:
        wrong.append("must not contain consecutive hyphens")
    if value.startswith("-") or value.endswith("-"):
        wrong.append("must not begin or end with a hyphen")
    return wrong


def user_or_group_id(value: int) -> list[str]:
    return [] if 0 <= value <= _MAX_INT32 else [between(0, _MAX_INT32)]


def environment_name(value: str) -> list[str]:
    if not value:
        return ["environment variable name must be non-empty"]
    if re.fullmatch(r"[ -<>-~]+", value):
        return []
    rule = "must consist only of printable ASCII characters other than '='"
    return [f"a valid environment variable name {rule}"]


def config_key(value: str) -> list[str]:
    """A key of a config map or secret: also a file name."""
    wrong = [_longer(LONGEST_SUBDOMAIN)] if len(value.encode()) > LONGEST_SUBDOMAIN else []
    if not re.fullmatch(_CONFIG_KEY, value):
        rule = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'"
        wrong.append(_unmatched(rule, _CONFIG_KEY, "key.name", "KEY_NAME", "key-name"))
    if value in (".", ".."):
        wrong.append(f"must not be '{value}'")
    elif value.startswith(".."):
        wrong.append("must not start with '..'")
    return wrong


def header_name(value: str) -> list[str]:
    if re.fullmatch(_HEADER, value):
        return []
    rule = "a valid HTTP header must consist of alphanumeric characters or '-'"
    return [_unmatched(rule, _HEADER, "X-Header-Name")]


def sysctl_name(value: str) -> list[str]:
    if len(value) <= LONGEST_SUBDOMAIN and re.fullmatch(_SYSCTL, value):
        return []
    return [f"must have at most {LONGEST_SUBDOMAIN} characters and match regex ^{_SYSCTL}$"]


def ip_address(value: str) -> list[str]:
    wrong = loose_ip_address(value)
    if wrong:
        return wrong
    try:
        address = ipaddress.ip_address(value)
    except ValueError:
        return ["must not have leading 0s"]
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        return ["must not be an IPv4-mapped IPv6 address"]
    return []


def loose_ip_address(value: str) -> list[str]:
    """The same as it was before it was looked at closely: with needless zeros, and IPv4 in IPv6 form."""
    try:
        ipaddress.ip_address(_NEEDLESS_ZEROS.sub("", value))
    except ValueError:
        pass
    else:
        if "%" not in value:
            return []
    return ["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"]


def relative_path(value: str) -> list[str]:
    """A path that stays below where it starts."""
    return (["must be a relative path"] if value.startswith("/") else []) + path_without_backsteps(value)


def path_without_backsteps(value: str) -> list[str]:
    return ["must not contain '..'"] if ".." in value.split("/") else []


def directory_name(value: str) -> list[str]:
    """One part of a path, which leads to no other directory: the UID of a pod. A rule of this agent's own."""
    if len(value) > _LONGEST_DIRECTORY:
        return [f"must have at most {_LONGEST_DIRECTORY} characters"]
    return path_part(value)


def path_part(value: str) -> list[str]:
    """One part of a path, of any length: where something is looked for only."""
    if value in ("", ".", ".."):
        return ["must be the name of a directory"]
    if "/" in value or not (value.isascii() and value.isprintable()):
        return ["must be printable, without '/'"]
    return []


def file_in_volume(value: str) -> list[str]:
    """A file's path in a volume whose contents are written atomically: '..' is reserved there."""
    reserved = value.startswith("..") and not value.startswith("../")
    return relative_path(value) + (["must not start with '..'"] if reserved else [])


def signer_name(value: str) -> list[tuple[str, str]]:
    """`example.com/name`: a domain of two labels at least, and a path. Each sentence with its part."""
    domain, slash, path = value.partition("/")
    if not slash or "/" in path:
        return [(value, "must be a fully qualified domain and path of the form 'example.com/signer-name'")]
    labels = domain.split(".")
    wrong = _first_wrong(domain, labels, dns_label)
    if len(labels) < 2:
        wrong.append((domain, "should be a domain with at least two segments separated by dots"))
    return wrong + _first_wrong(path, path.split("."), dns_subdomain)


def _first_wrong(part: str, labels: list[str], check: Callable[[str], list[str]]) -> list[tuple[str, str]]:
    for label in labels:
        if problems := check(label):
            return [(part, f'validating label "{label}": {problem}') for problem in problems]
    return []


def prefix_of_name(value: str) -> list[str]:
    """The beginning of a generated name, which may end in '-': something follows it."""
    return dns_subdomain(f"{value[:-2]}a" if len(value) > 1 and value.endswith("-") else value)
