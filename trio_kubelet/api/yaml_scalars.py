"""What a plain word of YAML means to Kubernetes, and how Go spells the numbers that come of it.

YAML 1.1 words for booleans and null, Go's integer notations, no base 60, dates stay text; and base64.
"""

from __future__ import annotations

import binascii
import math
import re
import struct
from typing import Final

TAG: Final = "tag:yaml.org,2002:"
STR, BOOL, INT, FLOAT, NULL = (TAG + name for name in ("str", "bool", "int", "float", "null"))
BINARY, TIMESTAMP, MERGE = (TAG + name for name in ("binary", "timestamp", "merge"))
RESOLVABLE: Final = frozenset({"", STR, BOOL, INT, FLOAT, NULL, TIMESTAMP})

_WORDS: Final[dict[str, tuple[str, object]]] = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), (BOOL, True)),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "off", "Off", "OFF"), (BOOL, False)),
    **dict.fromkeys(("false", "False", "FALSE"), (BOOL, False)),
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), (NULL, None)),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), (FLOAT, math.nan)),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), (FLOAT, math.inf)),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), (FLOAT, -math.inf)),
}  # fmt: skip
_FLOAT_SYNTAX: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
_DOT_FLOAT_SYNTAX: Final = re.compile(r"\.[0-9]+(_[0-9]+)*([eE][-+]?[0-9]+(_[0-9]+)*)?", re.ASCII)
_INTEGER_SYNTAX: Final = re.compile(
    r"([-+]?)(?:0[xX]([0-9a-fA-F]+)|0[bB]([01]+)|0b([-+][01]+)|0[oO]?([0-7]+)|(0|[1-9][0-9]*))", re.ASCII
)
_TIMESTAMP_SYNTAX: Final = re.compile(
    r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}"
    r"([Tt][0-9]{1,2}:[0-9]{1,2}:[0-9]{1,2}([.,][0-9]+)?(Z|[-+][0-9]{2}:[0-9]{2})"
    r"| [0-9]{1,2}:[0-9]{1,2}:[0-9]{1,2}([.,][0-9]+)?)?",
    re.ASCII,
)


class Number(str):
    """A JSON number that is not a plain integer, as its text."""

    __slots__ = ()


def json_number(number: float) -> int | Number:
    """A float as Go writes it into JSON: plain digits for a moderate exponent, else scientific."""
    if number == 0:
        return Number("-0") if math.copysign(1, number) < 0 else 0
    digits, _, exponent_text = f"{number!r}".replace("E", "e").partition("e")
    if 1e-6 <= abs(number) < 1e21:
        text = _positional(digits, int(exponent_text or 0))
        return int(text) if "." not in text else Number(text)
    mantissa, exponent = _scientific(digits, int(exponent_text or 0))
    return Number(f"{mantissa}e{'-' if exponent < 0 else '+'}{abs(exponent)}")


def decode_base64(text: str) -> bytes:
    """What Go's `base64.StdEncoding` makes of a text: line ends are passed over wherever they are.

    Raises ValueError for whatever else is no base64.
    """
    plain = text.replace("\n", "").replace("\r", "")
    if len(plain) % 4:  # binascii takes a "=" too many
        raise ValueError("its length is no multiple of four")
    return binascii.a2b_base64(plain, strict_mode=True)


def resolve(text: str, tag: str = "") -> tuple[str, object]:
    """What a plain word means. Base 60 does not exist, dates stay text, `_` groups digits."""
    first = text[:1]
    if tag == STR or (first and first not in "+-0123456789yYnNtTfFoO~."):
        return STR, text
    if text in _WORDS:
        return _WORDS[text]
    if first == ".":
        if _DOT_FLOAT_SYNTAX.fullmatch(text) and math.isfinite(float(text)):  # Python skips `_` too
            return FLOAT, float(text)
    elif first and first in "+-0123456789":
        if tag in ("", TIMESTAMP) and _TIMESTAMP_SYNTAX.fullmatch(text):
            return TIMESTAMP, text
        number = _number(text.replace("_", ""))
        if number is not None:
            return (FLOAT if isinstance(number, float) else INT), number
    return STR, text


def _number(plain: str) -> int | float | None:
    """An integer of up to 64 bits in Go's notations, or a float."""
    match = _INTEGER_SYNTAX.fullmatch(plain)
    if match and len(plain) <= 80:
        sign, hexadecimal, binary, signed_binary, octal, decimal = match.groups()
        if signed_binary and sign:
            return None
        magnitude = (
            int(hexadecimal, 16) if hexadecimal
            else int(binary or signed_binary, 2) if binary or signed_binary
            else int(octal, 8) if octal
            else int(decimal)
        )  # fmt: skip
        number = -magnitude if sign == "-" else magnitude
        if -(2**63) <= number < (2**63 if sign else 2**64):
            return number
    if _FLOAT_SYNTAX.fullmatch(plain):
        real = float(plain)
        return real if math.isfinite(real) else None
    return None


def _scientific(digits: str, exponent: int) -> tuple[str, int]:
    """`12.5`, 30 → `1.25`, 31: one digit before the point."""
    sign = "-" if digits.startswith("-") else ""
    whole, _, fraction = digits.lstrip("-").partition(".")
    joined = (whole + fraction).rstrip("0") or "0"
    stripped = joined.lstrip("0") or "0"
    exponent += len(whole) - 1 - (len(joined) - len(stripped))
    return sign + stripped[0] + ("." + stripped[1:] if len(stripped) > 1 else ""), exponent


def _positional(digits: str, exponent: int) -> str:
    """All digits written out, no trailing zeros after the point."""
    mantissa, exponent = _scientific(digits, exponent)
    sign = "-" if mantissa.startswith("-") else ""
    figures = mantissa.lstrip("-").replace(".", "")
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{figures}"
    whole, fraction = figures[: exponent + 1].ljust(exponent + 1, "0"), figures[exponent + 1 :]
    return f"{sign}{whole}{'.' + fraction if fraction else ''}"


def float32_text(number: float) -> str:
    """A float as a map key: the shortest text that gives the same 32-bit float."""
    if math.isnan(number):
        return ".nan"
    try:
        packed = struct.pack("f", number)
    except OverflowError:
        packed = struct.pack("f", math.copysign(math.inf, number))
    rounded = struct.unpack("f", packed)[0]
    if math.isinf(rounded):
        return ".inf" if rounded > 0 else "-.inf"
    if rounded == 0:
        return "-0" if math.copysign(1, rounded) < 0 else "0"
    text = next(t for t in (f"{rounded:.{p}e}" for p in range(17)) if struct.pack("f", float(t)) == packed)
    digits, _, exponent_text = text.partition("e")
    mantissa, exponent = _scientific(digits, int(exponent_text))
    if exponent < -4 or exponent >= 6:
        return f"{mantissa}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
    return _positional(digits, int(exponent_text))
