"""Draws the scaling curves of a benchmark run as SVG files: time over number of containers, both logarithmic.

usage: python -m bench.plot RESULTS.json DIRECTORY, where RESULTS.json is pytest-benchmark's. One file for
each `what` that the benchmarks put into their extra information, one line for each `series`; the dotted line
is what linear growth from the smallest size would be.
"""

from __future__ import annotations

import json
import math
import pathlib
import sys
from collections import defaultdict
from typing import NamedTuple

WIDTH, HEIGHT = 640, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 130, 40, 50
COLOURS = {"table": "#0b6e4f", "oracle": "#b5651d", "protobuf": "#3b5ba5", "read": "#777777"}

Point = tuple[float, float]


class Axis(NamedTuple):
    """A logarithmic axis over [low, high] laid on [start, end] of the drawing."""

    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)

    def decades(self) -> list[float]:
        first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
        return [10.0**exponent for exponent in range(first, last + 1)]


def decade(value: float, *, up: bool) -> float:
    """The power of ten next to the value."""
    rounded = math.ceil if up else math.floor
    return 10.0 ** rounded(math.log10(value))


def text(x: float, y: float, content: str, anchor: str = "middle", size: int = 12, fill: str = "#222") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} font-size="{size}" fill="{fill}">{content}</text>'


def line(points: list[Point], colour: str, dash: str = "", width: float = 2) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    stroke = f'stroke="{colour}" stroke-width="{width}" stroke-dasharray="{dash}"'
    return f'<polyline points="{path}" fill="none" {stroke}/>'


def draw(title: str, series: dict[str, list[Point]]) -> str:
    """The SVG of one figure; a point is (containers, milliseconds)."""
    counts = [x for points in series.values() for x, _ in points]
    times = [y for points in series.values() for _, y in points]
    across = Axis(min(counts), max(counts), LEFT, WIDTH - RIGHT)
    upwards = Axis(decade(min(times), up=False), decade(max(times), up=True), HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}"',
        'font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        text((LEFT + WIDTH - RIGHT) / 2, 22, title, size=15),
        text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, "containers"),
    ]
    for value in upwards.decades():
        y = upwards.place(value)
        parts.append(line([(LEFT, y), (WIDTH - RIGHT, y)], "#ddd", width=1))
        parts.append(text(LEFT - 8, y + 4, f"{value:g} ms", "end"))
    for value in across.decades():
        x = across.place(value)
        parts.append(line([(x, TOP), (x, HEIGHT - BOTTOM)], "#ddd", width=1))
        parts.append(text(x, HEIGHT - BOTTOM + 18, f"{value:,.0f}"))
    for name, points in sorted(series.items()):
        parts += _curve(name, sorted(points), across, upwards)
    return "\n".join([*parts, "</svg>\n"])


def _curve(name: str, points: list[Point], across: Axis, upwards: Axis) -> list[str]:
    colour = COLOURS.get(name, "#aa3377")
    placed = [(across.place(x), upwards.place(y)) for x, y in points]
    first_count, first_time = points[0]
    linear = [(across.place(x), upwards.place(first_time * x / first_count)) for x, _ in points]
    inside = [(x, y) for x, y in linear if y >= TOP]
    marks = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in placed]
    end_x, end_y = placed[-1]
    last = points[-1][1]
    time = f"{last:,.0f} ms" if last >= 100 else f"{last:.3g} ms"
    label = text(end_x + 8, end_y + 4, f"{name}, {time}", "start", fill=colour)
    return [line(inside, colour, dash="2 4", width=1), line(placed, colour), *marks, label]


def figures(results: pathlib.Path) -> dict[str, dict[str, list[Point]]]:
    """What was measured → series → its points."""
    found: dict[str, dict[str, list[Point]]] = defaultdict(lambda: defaultdict(list))
    for benchmark in json.loads(results.read_text())["benchmarks"]:
        info = benchmark["extra_info"]
        if {"what", "series", "containers"} <= info.keys():
            point = (info["containers"], benchmark["stats"]["min"] * 1e3)
            found[info["what"]][info["series"]].append(point)
    return found


def main(results: str, directory: str) -> None:
    out = pathlib.Path(directory)
    out.mkdir(parents=True, exist_ok=True)
    for what, series in figures(pathlib.Path(results)).items():
        if any(len(points) > 1 for points in series.values()):
            name = "".join(char if char.isalnum() else "-" for char in what).replace("--", "-").strip("-")
            (out / f"{name}.svg").write_text(draw(f"{what} (minima)", series))


if __name__ == "__main__":
    main(*sys.argv[1:3])
