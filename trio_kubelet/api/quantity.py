"""Resource quantities ("100m", "1.5Gi", "2e3") with exactly the arithmetic and the spelling of Kubernetes.

Two facts make this more than a decimal number. The canonical text is part of the API (`1024Mi` is
written back as `1Gi`), and the static pod UID hashes the *internal* form: a small quantity is an
int64 with a decimal scale, a large or very fine one a big decimal, and the original text is kept when
it already was canonical. So a `Quantity` carries both: as a `str` it is the canonical text, its
attributes are the internal form.
"""

from __future__ import annotations

import re
from typing import Final

DECIMAL_SI: Final = "DecimalSI"
BINARY_SI: Final = "BinarySI"
DECIMAL_EXPONENT: Final = "DecimalExponent"

NANO: Final = -9
MILLI: Final = -3

_MAX_INT64: Final = 2**63 - 1
_MIN_INT64: Final = -(2**63)
_DIGITS_OF_INT64: Final = 18
"""A number of this many digits fits an int64 for sure, so it takes the short form."""

_DECIMAL_SUFFIXES: Final = {
    "": 0, "n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18,
}  # fmt: skip
_BINARY_SUFFIXES: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_SPELLING: Final = {exponent: suffix for suffix, exponent in _DECIMAL_SUFFIXES.items()}
_BINARY_SPELLING: Final = {exponent: suffix for suffix, exponent in _BINARY_SUFFIXES.items()}

# An unsigned run of zeros alone is "0" whatever follows is missing; the groups are sign, leading
# zeros, whole digits, fraction (with its dot), suffix letters and suffix exponent.
# None gives back what it took: nothing behind it could use that, and to try would take hours for a long text.
_SYNTAX: Final = re.compile(
    r"([+-]?)(0*+)([0-9]*+)(?:(\.)([0-9]*+))?([eEinumkKMGTP]*+(?:[-+]?[0-9]*+))", re.ASCII
)

_SYNTAX_MESSAGE: Final = (
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)


class QuantityError(ValueError):
    """The text is not a quantity."""


class Quantity(str):
    """A parsed quantity; as text it is the canonical spelling.

    amount, scale: the value is amount·10^scale, unless `dec` is set.
    dec: (unscaled, scale) of a value that does not fit: unscaled·10^-scale.
    cached: the text it was parsed from, kept only when it needed no rewriting.
    notation: one of `DECIMAL_SI`, `BINARY_SI`, `DECIMAL_EXPONENT`, or "" for a quantity never parsed.
    """

    __slots__ = ("amount", "cached", "dec", "notation", "scale")

    amount: int
    scale: int
    dec: tuple[int, int] | None
    cached: str
    notation: str

    def __new__(
        cls, amount: int, scale: int, notation: str, cached: str = "", dec: tuple[int, int] | None = None
    ) -> Quantity:
        self = str.__new__(cls, cached or _canonical(amount, scale, dec, notation))
        self.amount, self.scale, self.notation, self.cached, self.dec = amount, scale, notation, cached, dec
        return self

    def __getnewargs__(self) -> tuple[int, int, str, str, tuple[int, int] | None]:  # type: ignore[override]
        return self.amount, self.scale, self.notation, self.cached, self.dec

    def sign(self) -> int:
        number = self.dec[0] if self.dec else self.amount
        return (number > 0) - (number < 0)

    def scaled_value(self, scale: int) -> int:
        """The value divided by 10^scale as an int64, fractions rounded up.

        A value that does not fit comes back as Go's arithmetic gives it (0, or wrapped).
        """
        if self.dec is None:
            if self.scale < scale:
                return _shrink(self.amount, scale - self.scale)[0]
            return _grow(self.amount, self.scale - scale)
        unscaled, dec_scale = self.dec
        shift = dec_scale + scale
        if shift == 0:
            return _wrap(unscaled)
        if shift < 0:
            return _wrap(_wrap(unscaled) * _pow10(-shift))
        if unscaled < _MAX_INT64 and shift < 19:
            number = _wrap(unscaled)
            whole = abs(number) // _pow10(shift) * (1 if number >= 0 else -1)
            return whole + (number != whole * _pow10(shift))
        whole, rest = divmod(unscaled, _pow10(shift))
        return _wrap(whole) + (rest != 0)

    def value(self) -> int:
        """Whole units, rounded up."""
        return self.scaled_value(0)

    def milli_value(self) -> int:
        """Thousandths of a unit, rounded up."""
        return self.scaled_value(MILLI)

    def compare(self, other: Quantity) -> int:
        """Negative, zero or positive as this is less than, equal to or more than the other."""
        mine, my_scale = self._decimal()
        its, its_scale = other._decimal()
        common = max(my_scale, its_scale)
        mine *= _pow10(common - my_scale)
        its *= _pow10(common - its_scale)
        return (mine > its) - (mine < its)

    def round_up(self, scale: int) -> Quantity:
        """At most the given precision, rounded away from zero (kubelet rounds resources to milli)."""
        if self.dec is not None:
            return Quantity(0, 0, self.notation, dec=_round_dec(*self.dec, -scale))
        if self.scale >= scale:
            return self
        return Quantity(_shrink(self.amount, scale - self.scale)[0], scale, self.notation)

    def add(self, other: Quantity) -> Quantity:
        """The sum; a zero takes the other's notation."""
        notation = other.notation if self.sign() == 0 else self.notation
        if self.dec is None and other.dec is None:
            if other.amount == 0:
                return Quantity(self.amount, self.scale, notation)
            if self.amount == 0:
                return Quantity(other.amount, other.scale, notation)
            scale = min(self.scale, other.scale)
            parts = self.amount * _pow10(self.scale - scale), other.amount * _pow10(other.scale - scale)
            if all(_fits(number) for number in (*parts, sum(parts))):
                return Quantity(sum(parts), scale, notation)
        mine, my_scale = self._decimal()
        its, its_scale = other._decimal()
        common = max(my_scale, its_scale)
        total = mine * _pow10(common - my_scale) + its * _pow10(common - its_scale)
        return Quantity(0, 0, notation, dec=(total, common))

    def _decimal(self) -> tuple[int, int]:
        return self.dec if self.dec is not None else (self.amount, -self.scale)


def parse(text: str) -> Quantity:
    """Parse a quantity; raises `QuantityError`.

    Precision is limited to nano (finer values are rounded up), binary quantities to 2^63-1.
    """
    if text == "0":
        return Quantity(0, 0, DECIMAL_SI, "0")
    sign, whole, fraction, number, suffix = _split(text)
    base, exponent, notation = _suffix(suffix)
    short = _short_form(text, sign, whole, fraction, exponent, notation)
    return short if short is not None else _long_form(sign, number, base, exponent, notation)


def _split(text: str) -> tuple[str, str, str, str, str]:
    """Sign, whole digits (no leading zeros), fraction digits, the number as text, suffix."""
    match = _SYNTAX.fullmatch(text)
    if match is None or not text:
        raise QuantityError(_SYNTAX_MESSAGE)
    sign, zeros, digits, dot, fraction, suffix = match.groups()
    if not dot and not suffix and not digits:
        # Nothing but a sign and zeros: Go's scanner stops at "0" before it looks for digits.
        return sign, "0", "", "0", ""
    number = f"{sign}{zeros}{digits}{dot or ''}{fraction or ''}"
    return sign, digits or "0", fraction or "", number, suffix


def _suffix(suffix: str) -> tuple[int, int, str]:
    """Base, exponent and notation of a suffix."""
    if suffix in _DECIMAL_SUFFIXES:
        return 10, _DECIMAL_SUFFIXES[suffix], DECIMAL_SI
    if suffix in _BINARY_SUFFIXES:
        return 2, _BINARY_SUFFIXES[suffix], BINARY_SI
    if suffix[:1] in ("e", "E") and (found := re.fullmatch(r"([+-]?)0*([0-9]{1,19})", suffix[1:])):
        exponent = int(found[1] + found[2])
        if abs(exponent) <= _MAX_EXPONENT:
            return 10, exponent, DECIMAL_EXPONENT
    raise QuantityError("unable to parse quantity's suffix")


_MAX_EXPONENT: Final = 10_000
"""Bounds the work one manifest can cause: Go would build a number of that many digits."""


def _short_form(
    text: str, sign: str, whole: str, fraction: str, exponent: int, notation: str
) -> Quantity | None:
    """The int64 form, or None if the value might not fit one."""
    mantissa, scale = 1, 0
    if notation != BINARY_SI:
        scale = exponent
        spare = _DIGITS_OF_INT64 - len(whole) - len(fraction)
    elif not fraction:
        mantissa = 1 << exponent
        spare = 15 - len(whole) - exponent * 3 // 10 - 1
    else:
        spare = -1
    scale -= len(fraction)
    if spare < 0 or scale < NANO:
        return None
    digits = whole + fraction
    plain = int(digits)
    amount = plain * mantissa
    if amount > _MAX_INT64:
        return None
    if notation == BINARY_SI:
        canonical = exponent % 10 == 0 and plain & 7 != 0
    else:
        canonical = scale % 3 == 0 and not digits.endswith("000") and digits[0] != "0"
    return Quantity(-amount if sign == "-" else amount, scale, notation, text if canonical else "")


def _long_form(sign: str, number: str, base: int, exponent: int, notation: str) -> Quantity:
    """The big decimal form: rounded up to nano, binary values capped."""
    whole, _, fraction = number.lstrip("+-").partition(".")
    if not (whole or fraction):
        raise QuantityError("unable to parse numeric part of quantity")
    if len(whole) + len(fraction) > _MAX_DIGITS:
        raise QuantityError(f"a quantity has at most {_MAX_DIGITS} digits")
    unscaled, scale = int(whole + fraction), len(fraction)
    if base == 10:
        scale -= exponent
    else:
        unscaled <<= exponent
    if unscaled:
        unscaled, scale = _round_dec(unscaled, scale, -NANO)
    one = _pow10(max(scale, 0))
    if notation == BINARY_SI and unscaled > _MAX_INT64 * one:
        unscaled, scale = _MAX_INT64, 0
    elif notation == BINARY_SI and 0 < unscaled < one:
        notation = DECIMAL_SI
    return Quantity(0, 0, notation, dec=(-unscaled if sign == "-" else unscaled, scale))


_MAX_DIGITS: Final = 4000
"""Python refuses to convert longer digit strings, and nobody means one."""


def _canonical(amount: int, scale: int, dec: tuple[int, int] | None, notation: str) -> str:
    unscaled, exponent = (dec[0], -dec[1]) if dec is not None else (amount, scale)
    if unscaled == 0:
        return "0"
    if notation == BINARY_SI:
        text = _canonical_binary(unscaled, exponent)
        if text is not None:
            return text
    while unscaled % 10 == 0:
        unscaled //= 10
        exponent += 1
    shift = exponent % 3
    unscaled *= _pow10(shift)
    exponent -= shift
    if notation in (DECIMAL_SI, BINARY_SI):
        # An exponent without a suffix is dropped, as Kubernetes does ("1000E" becomes "1").
        return f"{unscaled}{_DECIMAL_SPELLING.get(exponent, '')}"
    return f"{unscaled}e{exponent}" if exponent else str(unscaled)


def _canonical_binary(unscaled: int, exponent: int) -> str | None:
    """The text in powers of 1024, or None where that would lose precision or be less readable."""
    if exponent < 0:
        if unscaled % _pow10(-exponent):
            return None
        whole = abs(unscaled) // _pow10(-exponent) * (1 if unscaled > 0 else -1)
    else:
        whole = unscaled * _pow10(exponent)
    if -1024 < whole < 1024:
        return None
    power = 0
    while whole % 1024 == 0:
        whole //= 1024
        power += 10
    return f"{whole}{_BINARY_SPELLING.get(power, '')}"


def _pow10(exponent: int) -> int:
    return int(10**exponent)


def _grow(number: int, places: int) -> int:
    """Append decimal places; what does not fit wraps for a named unit's step and is 0 otherwise."""
    grown = number * _pow10(places)
    if _fits(grown):
        return grown
    return _wrap(grown) if places in (1, 2, 3, 6, 9) else 0


def _shrink(number: int, places: int) -> tuple[int, bool]:
    """Drop decimal places, rounding away from zero; whether nothing was lost."""
    whole, rest = divmod(abs(number), _pow10(places))
    whole += rest != 0
    return (whole if number >= 0 else -whole), rest == 0


def _round_dec(unscaled: int, scale: int, wanted: int) -> tuple[int, int]:
    """Bring a big decimal to the wanted scale, rounding away from zero."""
    if scale <= wanted:
        return unscaled * _pow10(wanted - scale), wanted
    return _shrink(unscaled, scale - wanted)[0], wanted


def _fits(number: int) -> bool:
    return _MIN_INT64 <= number <= _MAX_INT64


def _wrap(number: int) -> int:
    """The low 64 bits as a signed number."""
    return (number + 2**63) % 2**64 - 2**63


ZERO: Final = Quantity(0, 0, "")
"""What Go's zero value of a quantity prints as: "0", without a notation."""
