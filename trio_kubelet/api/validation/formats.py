"""The formats names and values must have. Each function says what is wrong, or None."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

_LABEL: Final = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_DNS_LABEL: Final = re.compile(_LABEL)
_DNS_SUBDOMAIN: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_LABEL_UNDERSCORE: Final = r"_?[a-z0-9](?:[-_a-z0-9]*[a-z0-9])?"
_DNS_UNDERSCORE: Final = re.compile(rf"{_LABEL_UNDERSCORE}(?:\.{_LABEL_UNDERSCORE})*")
_NAME_PART: Final = re.compile(r"(?:[A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_SYSCTL_SEGMENT: Final = r"[a-z0-9](?:[-_a-z0-9]*[a-z0-9])?"
_NEEDLESS_ZEROS: Final = re.compile(r"(?<![0-9A-Fa-f])0+(?=[0-9A-Fa-f])")
_SYSCTL: Final = re.compile(rf"(?:{_SYSCTL_SEGMENT}[./])*{_SYSCTL_SEGMENT}")

LONGEST_SUBDOMAIN: Final = 253
_LONGEST_LABEL: Final = 63
_MAX_INT32: Final = 2**31 - 1
_LONGEST_DIRECTORY: Final = 200


def dns_label(value: str) -> str | None:
    """A name of one DNS label (RFC 1123), as pods' containers and volumes have it."""
    if len(value) > _LONGEST_LABEL:
        return f"has more than {_LONGEST_LABEL} characters"
    if not _DNS_LABEL.fullmatch(value):
        return "must be lower case letters, digits and '-', with a letter or digit at both ends"
    return None


def dns_subdomain(value: str) -> str | None:
    """DNS labels joined by dots, as most objects' names."""
    return _subdomain(value, _DNS_SUBDOMAIN)


def dns_subdomain_underscore(value: str) -> str | None:
    """A DNS search domain, which may contain underscores."""
    return _subdomain(value, _DNS_UNDERSCORE)


def _subdomain(value: str, pattern: re.Pattern[str]) -> str | None:
    if len(value) > LONGEST_SUBDOMAIN:
        return f"has more than {LONGEST_SUBDOMAIN} characters"
    if not pattern.fullmatch(value):
        return "must be lower case labels joined by dots, each with a letter or digit at both ends"
    return None


def qualified_name(value: str) -> str | None:
    """`name` or `domain/name`: keys of labels and annotations, resources, conditions."""
    parts = value.split("/")
    if len(parts) > 2:
        return "has more than one '/'"
    if len(parts) == 2:
        if not parts[0]:
            return "has nothing before the '/'"
        problem = dns_subdomain(parts[0])
        if problem:
            return f"the part before the '/' {problem}"
    name = parts[-1]
    if not name:
        return "has an empty name"
    if len(name) > _LONGEST_LABEL:
        return f"has a name of more than {_LONGEST_LABEL} characters"
    if not _NAME_PART.fullmatch(name):
        return "must be letters, digits, '-', '_' and '.', with a letter or digit at both ends"
    return None


def label_value(value: str) -> str | None:
    if len(value) > _LONGEST_LABEL:
        return f"has more than {_LONGEST_LABEL} characters"
    if value and not _NAME_PART.fullmatch(value):
        return "must be letters, digits, '-', '_' and '.', with a letter or digit at both ends"
    return None


def port_number(value: int) -> str | None:
    return None if 1 <= value <= 65535 else "must be between 1 and 65535"


def port_name(value: str) -> str | None:
    if len(value) > 15:
        return "has more than 15 characters"
    if not re.fullmatch(r"[-a-z0-9]+", value):
        return "must be lower case letters, digits and '-'"
    if not re.search(r"[a-z]", value):
        return "must contain a letter"
    if "--" in value or value[0] == "-" or value[-1] == "-":
        return "must not begin or end with '-' nor contain '--'"
    return None


def user_or_group_id(value: int) -> str | None:
    return None if 0 <= value <= _MAX_INT32 else f"must be between 0 and {_MAX_INT32}"


def environment_name(value: str) -> str | None:
    if not value:
        return "must not be empty"
    if not re.fullmatch(r"[ -<>-~]+", value):
        return "must be printable ASCII characters other than '='"
    return None


def config_key(value: str) -> str | None:
    """A key of a config map or secret: also a file name."""
    if len(value) > LONGEST_SUBDOMAIN:
        return f"has more than {LONGEST_SUBDOMAIN} characters"
    if not re.fullmatch(r"[-._a-zA-Z0-9]+", value):
        return "must be letters, digits, '-', '_' and '.'"
    if value == "." or value.startswith(".."):
        return "must not be '.' nor start with '..'"
    return None


def header_name(value: str) -> str | None:
    return None if re.fullmatch(r"[-A-Za-z0-9]+", value) else "must be letters, digits and '-'"


def sysctl_name(value: str) -> str | None:
    if len(value) > LONGEST_SUBDOMAIN or not _SYSCTL.fullmatch(value):
        return f"must be at most {LONGEST_SUBDOMAIN} characters in segments joined by '.' or '/'"
    return None


def ip_address(value: str) -> str | None:
    try:
        address = ipaddress.ip_address(value)
    except ValueError:
        return "must be an IP address"
    if "%" in value or (isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped):
        return "must be an IP address without zone, and not an IPv4 address in IPv6 form"
    return None


def loose_ip_address(value: str) -> str | None:
    """The same as it was before it was looked at closely: with needless zeros, and IPv4 in IPv6 form."""
    try:
        ipaddress.ip_address(_NEEDLESS_ZEROS.sub("", value))
    except ValueError:
        return "must be an IP address"
    return "must be an IP address without zone" if "%" in value else None


def relative_path(value: str) -> str | None:
    """A path that stays below where it starts."""
    if value.startswith("/"):
        return "must be a relative path"
    return path_without_backsteps(value)


def path_without_backsteps(value: str) -> str | None:
    return "must not contain '..'" if ".." in value.split("/") else None


def directory_name(value: str) -> str | None:
    """One part of a path, which leads to no other directory: the UID of a pod."""
    if value in ("", ".", ".."):
        return "must be the name of a directory"
    if len(value) > _LONGEST_DIRECTORY:
        return f"must have at most {_LONGEST_DIRECTORY} characters"
    if "/" in value or not (value.isascii() and value.isprintable()):
        return "must be printable, without '/'"
    return None


def file_in_volume(value: str) -> str | None:
    """A file's path in a volume whose contents are written atomically: '..' is reserved there."""
    problem = relative_path(value)
    if problem is None and value.startswith("..") and not value.startswith("../"):
        return "must not start with '..'"
    return problem


def masked_prefix(value: str) -> str:
    """A generated name's prefix may end in '-'; something follows it."""
    return f"{value[:-2]}a" if len(value) > 1 and value.endswith("-") else value
