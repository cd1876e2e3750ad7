"""Charts of the page about a model, as places on a canvas that `template/model.html` writes as SVG."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mistrnn.report._thinning import thinned
from mistrnn.report.evaluation import UNLABELLED, Timeline, stretches

WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 58, 24, 16, 46
"""Margins of the canvas, for ticks and names of axes."""
MOST_POINTS = 300
"""On a line: a screen shows no more."""
MOST_DOTS = 2_000
MOST_FRAMES = 1_000
"""Frames of a timeline that are drawn: of a longer one every second, third, ..."""
LANE = 30
LOG_FROM = 30.0
"""A scale is logarithmic where the largest value is so many times the least."""

Numbers = Sequence[float | None]


@dataclass(frozen=True)
class Axis:
    """The scale of an axis."""

    name: str
    low: float
    high: float
    log: bool = False
    least_step: float = 0.0
    """Between ticks."""
    write: Callable[[float], str] = "{:g}".format

    def share(self, value: float) -> float:
        """Return how far along the axis a value is: 0 at its low end, 1 at its high end."""
        low, high, at = (math.log10(v) if self.log else v for v in (self.low, self.high, value))
        return (at - low) / (high - low)

    def ticks(self) -> list[float]:
        """Return the values that are written at the axis."""
        if not self.log:
            return nice_ticks(self.low, self.high, self.least_step)
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        whole = [10.0**k for k in powers if self.low <= 10.0**k <= self.high]
        if len(whole) >= 3:
            return whole[:: math.ceil(len(whole) / 6)]
        return [m * 10.0**k for k in powers for m in (1, 2, 5) if self.low <= m * 10.0**k <= self.high]


def nice_ticks(low: float, high: float, least_step: float = 0.0) -> list[float]:
    """Return round numbers between two values, about six.

    >>> nice_ticks(0, 1)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    raw = max((high - low) / 6, least_step)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-9))
    digits = max(0, 1 - math.floor(math.log10(step)))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(k * step, digits) for k in range(first, last + 1)]


def fitted_axis(name: str, values: Sequence[float], *, zero: bool = False, may_be_log: bool = False) -> Axis:
    """Return an axis that holds these values, with some room; from 0 on if `zero`."""
    low, high = min(values), max(values)
    if may_be_log and low > 0 and high / low > LOG_FROM:
        return Axis(f"{name} (log scale)", low / 1.2, high * 1.2, log=True)
    low = min(0.0, low) if zero else low
    room = 0.05 * (high - low) or max(abs(high) * 0.1, 1e-6)
    return Axis(name, low if zero and low == 0 else low - room, high + room)


def whole_axis(name: str, low: float, high: float) -> Axis:
    """Return an axis of whole numbers."""
    return Axis(name, low, high, least_step=1.0, write="{:,.0f}".format)


def share_axis(name: str) -> Axis:
    """Return an axis from 0% to 100%."""
    return Axis(name, 0.0, 1.0, write="{:.0%}".format)


@dataclass(frozen=True)
class Line:
    """A line of the chart, in pieces where values are missing."""

    name: str
    style: int
    pieces: list[str]
    """Each the points of an SVG polyline."""


@dataclass(frozen=True)
class Dot:
    """A point of a scatter plot."""

    x: float
    y: float
    text: str
    """Shown by a browser when pointed at."""
    style: int = 0
    open: bool = False


@dataclass(frozen=True)
class Mark:
    """A straight line across the chart with words at its end."""

    text: str
    x1: float
    y1: float
    x2: float
    y2: float
    text_x: float
    text_y: float
    anchor: str


@dataclass
class Chart:
    """A chart with two axes; everything in it has its place on the canvas."""

    title: str
    alt: str
    x: Axis
    y: Axis
    height: int = HEIGHT
    lines: list[Line] = field(default_factory=list)
    dots: list[Dot] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    width: int = WIDTH
    left: int = LEFT

    @property
    def right(self) -> int:
        """Where the x axis ends."""
        return self.width - RIGHT

    @property
    def top(self) -> int:
        """Where the y axis ends."""
        return TOP

    @property
    def bottom(self) -> int:
        """Where the y axis begins."""
        return self.height - BOTTOM

    def at_x(self, value: float) -> float:
        """Return the place of a value on the canvas, from the left."""
        return round(self.left + self.x.share(value) * (self.right - self.left), 1)

    def at_y(self, value: float) -> float:
        """Return the place of a value on the canvas, from the top."""
        return round(self.bottom - self.y.share(value) * (self.bottom - self.top), 1)

    def x_ticks(self) -> list[tuple[float, str]]:
        """Return the places and the words of the ticks."""
        return [(self.at_x(value), self.x.write(value)) for value in self.x.ticks()]

    def y_ticks(self) -> list[tuple[float, str]]:
        """Return the places and the words of the ticks."""
        return [(self.at_y(value), self.y.write(value)) for value in self.y.ticks()]

    def add_line(self, name: str, x: Sequence[float], y: Numbers) -> None:
        """Draw a line; a gap where y has no finite value."""
        pieces: list[list[int]] = [[]]
        for k, value in enumerate(y):
            if value is None or not math.isfinite(value):
                pieces.append([])
            else:
                pieces[-1].append(k)
        drawn = []
        for own in filter(None, pieces):
            values = [float(y[k] or 0.0) for k in own]
            kept = thinned(values, max(2, MOST_POINTS * len(own) // len(x)))
            drawn.append(" ".join(f"{self.at_x(x[own[k]])},{self.at_y(values[k])}" for k in kept))
        self.lines.append(Line(name, len(self.lines), drawn))

    def add_dot(self, x: float, y: float, text: str, *, style: int = 0, hollow: bool = False) -> None:
        """Draw a point."""
        self.dots.append(Dot(self.at_x(x), self.at_y(y), text, style, hollow))

    def add_level(self, value: float, text: str) -> None:
        """Draw a horizontal line; its words stand where the chart has room."""
        at = self.at_y(value)
        above = at - 5 if at - self.top > 20 else at + 14
        self.marks.append(Mark(text, self.left, at, self.right, at, self.right - 4, above, "end"))

    def add_diagonal(self, text: str) -> None:
        """Draw the line on which both axes have the same value; the axes must have the same ends."""
        mark = Mark(text, self.left, self.bottom, self.right, self.top, self.right - 60, self.top + 10, "end")
        self.marks.append(mark)

    def add_moment(self, value: float, text: str) -> None:
        """Draw a vertical line with words at its top."""
        at = self.at_x(value)
        early = at < (self.left + self.right) / 2
        place = at + 5 if early else at - 5
        self.marks.append(Mark(text, at, self.top, at, self.bottom, place, self.top + 10, "start" if early else "end"))


@dataclass(frozen=True)
class Bar:
    """A stretch of a timeline."""

    x: float
    width: float
    y: float
    predicted: bool
    text: str


@dataclass(frozen=True)
class TimelineChart:
    """True and predicted classes over time: a lane for each class, the true one above the predicted one."""

    title: str
    alt: str
    note: str
    canvas: Chart
    lanes: list[tuple[float, str]]
    bars: list[Bar]


def timeline_chart(timeline: Timeline, classes: Sequence[str]) -> TimelineChart:
    """Return the timeline of one case; only classes that occur in it have a lane."""
    length = len(timeline.truth)
    every = math.ceil(length / MOST_FRAMES)
    truth, found = timeline.truth[::every], timeline.found[::every]
    present = sorted({*truth.tolist(), *found.tolist()} - {UNLABELLED})
    lane_of = {code: number for number, code in enumerate(present)}
    height = TOP + LANE * len(present) + BOTTOM
    labelled = timeline.truth != UNLABELLED
    accuracy = float((timeline.truth == timeline.found)[labelled].mean())
    words = f"Accuracy {accuracy:.1%} on {int(labelled.sum()):,} labelled frames"
    canvas = Chart("", "", whole_axis("frame", 0, length), Axis("", 0, 1), height, width=2 * WIDTH, left=150)
    bars = []
    for values, predicted in ((truth, False), (found, True)):
        for start, end in stretches(values):
            if values[start] == UNLABELLED:
                continue
            begin, stop = start * every, min(length, end * every)
            x, y = canvas.at_x(begin), TOP + LANE * lane_of[int(values[start])] + (15 if predicted else 5)
            text = f"{'predicted' if predicted else 'true'}: {classes[values[start]]}, frames {begin + 1:,} to {stop:,}"
            bars.append(Bar(x, round(max(1.0, canvas.at_x(stop) - x), 1), y, predicted, text))
    lanes = [(TOP + LANE * number + LANE / 2, _short(classes[code])) for code, number in lane_of.items()]
    note = f" Drawn from every {every}th frame." if every > 1 else ""
    title = f"Case {timeline.id}: {timeline.why}"
    return TimelineChart(title, f"{title}. {words}.", f"{words[0].upper()}{words[1:]}.{note}", canvas, lanes, bars)


def _short(name: str) -> str:
    return name if len(name) <= 20 else f"{name[:19]}…"
