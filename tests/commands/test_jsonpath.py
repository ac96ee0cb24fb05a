"""JSONPath templates as kubectl fills them in: the expected texts and errors are those of kubectl v1.32."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.commands.jsonpath import steps
from trio_kubelet.commands.jsonpath.parse import parse, parse_relaxed
from trio_kubelet.commands.jsonpath.steps import JSONPathError

OBJECT: dict[str, Any] = {
    "kind": "Pod",
    "metadata": {"name": "a", "annotations": {"a.b/c": "d", "html": "<x>&\u2028é"}},
    "spec": {
        "n": 1,
        "yes": True,
        "null": None,
        "l": [1, 2, 3, 4],
        "s": "ab",
        "o": [{"x": 1, "y": "q", "l": [1, 2]}, {"x": 2, "b": True}, {"y": 'r"s)'}, {"x": 3, "y": "q"}],
        "none": [],
        "ll": [[1, 2], [3], []],
    },
}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{.metadata.name}", "a"),
        ("{.metadata .name}", "a"),
        ("{$.kind}{@.kind}{ .kind }", "PodPodPod"),
        ("a{.kind}b{'c'}d", "aPodbcd"),
        ("{.spec.n} {.spec.yes} {.spec.null}|{.nope}|", "1 true null||"),
        ("{.spec.l}{.spec.none}", "[1,2,3,4][]"),
        ("{.metadata.annotations}", r'{"a.b/c":"d","html":"\u003cx\u003e\u0026\u2028é"}'),
        ("{.metadata.annotations.html}", "<x>&\u2028é"),
        (r"{.metadata.annotations.a\.b/c}", "d"),
        (r"{.metadata.annotations['a\.b/c']}", "d"),
        ("{.spec.l[*]}", "1 2 3 4"),
        ("{.spec.l[0]} {.spec.l[-1]} {.spec.l[]}", "1 4 1"),
        ("{.spec.l[-2:]}|{.spec.l[:2]}|{.spec.l[1:3]}|{.spec.l[::2]}", "3 4|1 2|2 3|1 3"),
        ("{.spec.l[4:]}|{.spec.l[0,2]}", "|1 3"),
        ("{.spec.ll[*][*]}|{.spec.ll[*][1:]}", "1 2 3|2"),
        ("{.spec.o[0]['x','y']}", "1 q"),
        ("{.spec.o[*].x}", "1 2 3"),
        ("{..x}|{.spec..y}", '1 2 3|q r"s) q'),
        ("{..['x']}", "1 2 3"),
        ("{.spec.s.*}", "97 98"),
        ("{.spec.o[?(@.x)].x}", "1 2 3"),
        ("{.spec.o[?(@.x==1)]}", '{"l":[1,2],"x":1,"y":"q"}'),
        ('{.spec.o[?(@.y=="q")].x}', "1 3"),
        ("{.spec.o[?(@.y == 'q')].x}", "1 3"),
        ('{.spec.o[?(@.y=="r\\"s)")].y}', 'r"s)'),
        ("{.spec.o[?(@.x>1)].x}|{.spec.o[?(@.x>=1)].x}|{.spec.o[?(@.x!=1)].x}", "2 3|1 2 3|2 3"),
        ("{.spec.o[?(@.x<2)].x}|{.spec.o[?(@.x<=2)].x}|{.spec.o[?(@.b==true)].x}", "1|1 2|2"),
        ("{.spec.o[?(@.l[0]==1)].x}|{.spec.l[?(@>2)]}", "1|3 4"),
        ('{range .spec.o[*]}{.x}{"\\t"}{.y}{"\\n"}{end}', '1\tq\n2\t\n\tr"s)\n3\tq\n'),
        ("{range .spec.o[*]}[{range .l[*]}{@},{end}]{end}z", "[1,2,][][][]z"),
        ("{range .spec.none[*]}a{.x}{end}b", "b"),
        ("{range .spec.o[*]}{.x}", "123"),
        ("{1}{-2}{+3}{1.5}{true}{false}", "1-231.5truefalse"),
        ('{"a\\n\\x41\\u00e9\\101"}', "a\nAéA"),
        ("x}y", "x}y"),
    ],
)
def test_what_a_template_gives(template: str, text: str) -> None:
    assert parse(template).text(OBJECT) == text


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{.a", "unclosed action"),
        ("{.a\n}", "unclosed action"),
        ("{.a[", "unterminated array"),
        ("{.a[?(@.x)", "unclosed array expect ]"),
        ("{.a[?(@.x", "unterminated filter"),
        ('{"a', "unterminated quoted string"),
        ('{"a\\\'"}', "unquote string"),
        ("{....x}", "invalid multiple recursive descent"),
        ("{#}", "unrecognized character in action: '#'"),
        ("{metadata.name}", "unrecognized identifier metadata"),
        ("{end}", "not in range, nothing to end"),
        ("{.a[x]}", "invalid array index x"),
        ("{.a[-]}", "array index - is not a number"),
        ("{1.2.3}", "cannot parse number 1.2.3"),
        ("{.spec.l[5]}", "array index out of bounds: index 5, length 4"),
        ("{.spec.l[0:9]}", "array index out of bounds: index 8, length 4"),
        ("{.spec.l[3:1]}", "starting index 3 is greater than ending index 1"),
        ("{.spec.l[::0]}", "step must be > 0"),
        ("{.spec.n[0]}", "is not array or slice"),
        ("{.spec[?(@.x)]}", "is not array or slice and cannot be filtered"),
        ('{.spec.o[?(@.x<"a")]}', "incompatible types for comparison"),
        ("{.spec.o[?(@.b<true)]}", "invalid type for comparison"),
        ("{.spec.o[?(@.x=1)]}", "unrecognized filter operator ="),
        ("{.spec.l[?(@.*==1)].x}{.spec.ll[?(@[*]==1)]}", "can only compare one element at a time"),
    ],
)
def test_what_a_template_cannot_be(template: str, why: str) -> None:
    with pytest.raises(JSONPathError) as error:
        parse(template).text(OBJECT)
    assert why in str(error.value)


def test_as_json() -> None:
    assert parse("{.spec.l[:2]} {.nope}{.metadata.name}").json(OBJECT) == (
        '[\n    1,\n    2\n]\n[\n    " "\n]\n[]\n[\n    "a"\n]\n'
    )


@pytest.mark.parametrize("path", ["metadata.name", ".metadata.name", "{metadata.name}", "{.metadata.name}"])
def test_a_path_without_its_braces(path: str) -> None:
    assert parse_relaxed(path).text(OBJECT) == "a"


def test_no_path() -> None:
    with pytest.raises(JSONPathError, match="is no path such as"):
        parse_relaxed("{.a}{.b}")


def test_what_is_found_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "MAX_RESULTS", 100)
    many = {"l": [[0] * 20] * 20}
    assert len(parse("{.l[*]}").find(many)[0]) == 20
    for template in ("{..*}", "{.l[*][*]}", "{range .l[*]}{range @[*]}{@}{end}{end}"):
        with pytest.raises(JSONPathError, match=r"more than 100 results|unrecognized character"):
            parse(template).find(many)


def test_what_is_deep_needs_no_stack() -> None:
    deep: Any = "end"
    for _ in range(50_000):
        deep = {"a": [deep]}
    assert parse("{..a[0]}").find(deep)[0][-1] == "end"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("ab.[]'{}é \\", max_size=3), inner),
    max_leaves=20,
)
PIECES = st.sampled_from([*"{}.[]()?@$*:,'\"\\- ab01=<>\n", "..", "{range ", "{end}", "[?(@.a", "==", "true"])


@given(st.lists(PIECES, max_size=20).map("".join), VALUES)
def test_any_template_gives_text_or_is_refused(template: str, value: Any) -> None:
    with contextlib.suppress(JSONPathError):
        filled = parse(template)
        assert isinstance(filled.text(value), str)
        assert isinstance(filled.json(value), str)


@given(VALUES, st.data())
def test_a_path_leads_where_its_keys_and_indexes_do(root: Any, data: st.DataObject) -> None:
    value, path = root, ""
    while isinstance(value, dict | list) and value:
        if isinstance(value, list):
            index = data.draw(st.integers(-len(value), len(value) - 1))
            value, path = value[index], f"{path}[{index}]"
        else:
            key = data.draw(st.sampled_from(sorted(value)))
            if "\\" in key or not key:
                break  # which no path names
            value, path = value[key], path + "." + "".join(f"\\{char}" for char in key)
    assert parse("{@" + path + "}").find(root) == [[value]]


@given(st.lists(st.integers()), st.integers(-9, 9) | st.none(), st.integers(-9, 9) | st.none())
def test_a_slice_is_pythons_where_it_is_in_bounds(
    values: list[int], start: int | None, end: int | None
) -> None:
    spelt = f"{{@[{'' if start is None else start}:{'' if end is None else end}]}}"
    try:
        found = parse(spelt).find(values)
    except JSONPathError:
        begin, stop, _ = slice(start, end).indices(len(values))
        outside = any(each is not None and not -len(values) <= each <= len(values) for each in (start, end))
        assert outside or begin >= stop or begin == len(values)
    else:
        assert found == [values[slice(start, end)]]


@given(st.text())
def test_what_is_quoted_stands_for_itself(text: str) -> None:
    quoted = "".join(f"\\U{ord(char):08x}" if char in '"\\\n' or ord(char) < 32 else char for char in text)
    assert parse(f'{{"{quoted}"}}').text(None) == text


@given(VALUES)
def test_the_descent_finds_each_field_of_that_name(value: Any) -> None:
    expected: list[Any] = []

    def look(inside: Any) -> None:
        if isinstance(inside, dict):
            expected.extend([inside["a"]] if "a" in inside else [])
        for each in (
            inside.values() if isinstance(inside, dict) else inside if isinstance(inside, list) else ()
        ):
            look(each)

    look(value)
    found = parse("{..a}").find(value)[0]
    assert [json.dumps(each) for each in found] == [json.dumps(each) for each in expected]
