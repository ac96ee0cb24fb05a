"""Quantities: recorded spellings, and properties that hold for every quantity."""

from __future__ import annotations

import copy
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.slowness import within_cpu
from trio_kubelet.api.quantity import BINARY_SI, DECIMAL_SI, MILLI, ZERO, Quantity, QuantityError, parse

SUFFIXES = ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "e3", "E-2"]
UNITS = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}

numbers = st.one_of(
    st.integers(0, 10**9).map(str),
    st.tuples(st.integers(0, 10**6), st.integers(0, 999)).map(lambda pair: f"{pair[0]}.{pair[1]}"),
)
quantities = st.builds(
    lambda sign, number, suffix: f"{sign}{number}{suffix}",
    st.sampled_from(["", "", "-", "+"]),
    numbers,
    st.sampled_from(SUFFIXES),
)


def exact(quantity: Quantity) -> Fraction:
    """The value as a fraction, from the internal form."""
    if quantity.dec is not None:
        unscaled, scale = quantity.dec
        return Fraction(unscaled) / Fraction(10) ** scale
    return Fraction(quantity.amount) * Fraction(10) ** quantity.scale


# Text, canonical text, whole units, thousandths: as Kubernetes v1.36 answers.
RECORDED = [
    ("0", "0", 0, 0),
    ("1", "1", 1, 1000),
    ("100m", "100m", 1, 100),
    ("1500m", "1500m", 2, 1500),
    ("0.5", "500m", 1, 500),
    ("1000m", "1", 1, 1000),
    ("1024Mi", "1Gi", 1 << 30, (1 << 30) * 1000),
    ("8Gi", "8Gi", 8 << 30, (8 << 30) * 1000),
    ("1.5Gi", "1536Mi", 3 << 29, (3 << 29) * 1000),
    ("0.5Mi", "512Ki", 1 << 19, (1 << 19) * 1000),
    ("1e3", "1e3", 1000, 1000000),
    ("1000k", "1M", 1000000, 1000000000),
    ("+5", "+5", 5, 5000),
    ("005", "005", 5, 5000),
    ("-1.5", "-1500m", -2, -1500),
    ("1.", "1.", 1, 1000),
    (".5", "500m", 1, 500),
    ("0.0000000001", "1n", 1, 1),
    ("1n", "1n", 1, 1),
    ("10Ti", "10Ti", 10 << 40, (10 << 40) * 1000),
    ("100Ei", "9223372036854775807", 2**63 - 1, None),
    ("1000E", "1", None, None),
]


@pytest.mark.parametrize(("text", "canonical", "value", "milli"), RECORDED)
def test_recorded(text: str, canonical: str, value: int | None, milli: int | None) -> None:
    quantity = parse(text)
    assert quantity == canonical
    assert value is None or quantity.value() == value
    assert milli is None or quantity.milli_value() == milli


NO_QUANTITIES = [
    "", "x", "1 ", " 1", "1_0", "1.2.3", "0x10", "1kk", "ki", "1KI", "1e", "1m1", "--1", "1e1.5", "NaN",
]  # fmt: skip


@pytest.mark.parametrize("text", NO_QUANTITIES)
def test_no_quantity(text: str) -> None:
    with pytest.raises(QuantityError):
        parse(text)


@pytest.mark.parametrize(
    ("text", "internal"),
    [
        ("128Mi", (128 << 20, 0, "", BINARY_SI, None)),
        ("1Gi", (1 << 30, 0, "1Gi", BINARY_SI, None)),
        ("0.5", (5, -1, "", DECIMAL_SI, None)),
        ("1Pi", (0, 0, "", BINARY_SI, ((1 << 50) * 10**9, 9))),
        ("12345678901234567890", (0, 0, "", DECIMAL_SI, (12345678901234567890 * 10**9, 9))),
    ],
)
def test_internal_form(text: str, internal: tuple[object, ...]) -> None:
    got = parse(text)
    assert (got.amount, got.scale, got.cached, got.notation, got.dec) == internal


@given(quantities)
def test_the_canonical_text_means_the_same(text: str) -> None:
    quantity = parse(text)
    if quantity.notation == BINARY_SI or abs(exact(quantity)) < 10**18:
        assert exact(parse(str(quantity))) == exact(quantity)


@given(quantities)
def test_canonical_is_a_fixed_point(text: str) -> None:
    once = str(parse(text).round_up(MILLI))
    assert str(parse(once)) == str(parse(str(parse(once))))


@given(st.integers(-(10**6), 10**6), st.sampled_from(sorted(UNITS)))
def test_value_rounds_up_to_whole_units(number: int, unit: str) -> None:
    quantity = parse(f"{number}{unit}")
    true_value = Fraction(number) * Fraction(10) ** UNITS[unit]
    if abs(true_value) < 2**62:
        away = -((-true_value) // 1) if true_value >= 0 else true_value // 1
        assert quantity.value() == away


@given(quantities, quantities)
def test_order_is_that_of_the_values(left: str, right: str) -> None:
    a, b = parse(left), parse(right)
    assert a.compare(b) == (exact(a) > exact(b)) - (exact(a) < exact(b))
    assert a.compare(b) == -b.compare(a)


@given(quantities, quantities)
def test_sums_are_exact(left: str, right: str) -> None:
    a, b = parse(left), parse(right)
    assert exact(a.add(b)) == exact(a) + exact(b)


@given(quantities)
def test_rounding_never_gives_less(text: str) -> None:
    quantity = parse(text)
    rounded = exact(quantity.round_up(MILLI))
    assert abs(rounded) >= abs(exact(quantity))
    assert abs(rounded - exact(quantity)) < Fraction(1, 1000)


def test_zero_takes_the_format_of_what_is_added() -> None:
    assert ZERO.add(parse("1Gi")) == "1Gi"
    assert parse("0").add(parse("1024Mi")).notation == BINARY_SI


def test_copies_keep_the_internal_form() -> None:
    quantity = parse("1Pi")
    twin = copy.deepcopy(quantity)
    assert (twin, twin.dec, twin.notation) == (quantity, quantity.dec, quantity.notation)


@pytest.mark.parametrize(
    "text",
    ["0" * 100_000 + "x", "1" * 100_000 + "x", "0" * 50_000 + "1" * 50_000 + "!", "1E" + "9" * 100_000],
)
def test_long_texts_are_refused_at_once(text: str) -> None:
    """A regular expression that gives back what it took would need hours for the first one."""
    for _ in within_cpu(1):
        with pytest.raises(QuantityError):
            parse(text)


def test_an_exponent_may_begin_with_zeros() -> None:
    assert parse("1E" + "0" * 10_000 + "3").value() == 1000
