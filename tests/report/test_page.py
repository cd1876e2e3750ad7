"""The report page: what it holds, what it says of broken folders, and how it behaves in a browser."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe

from mistrnn.errors import UsageError
from mistrnn.paper import figure3, table1
from mistrnn.report import build_page
from mistrnn.tasks._mnist_files import PUBLISHED
from mistrnn.training import Study
from tests.report.studies import write_study

HOSTILE = "<img src=x onerror=\"document.title='broken in'\">'\"&amp;{{7*7}}"


def small_study(**settings: Any) -> Study:
    fixed: dict[str, Any] = {"task": "copy", "layer": "mist", "hidden": 8, "trials": 10, "steps": 40}
    return Study(**{**fixed, "task_settings": {"delay": 30}, "layer_options": {"delays": 3}, **settings})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of table 1 with two seeds, a figure 3 study, one of a person's own with a hostile name, one half done."""
    folder = tmp_path_factory.mktemp("studies")
    for row in table1.ROWS[:4]:
        for seed in (0, 1):
            place = folder / "table1" / f"{row.key}-seed-{seed}"
            write_study(place, row.with_settings(seed, None, None), data=PUBLISHED, level=row.published.error * 0.96)
    row = next(row for row in figure3.rows([50]) if row.study.layer == "mist")
    write_study(folder / "copy", row.with_settings(0, 10, 1000), level=1e-5)
    write_study(folder / HOSTILE.replace("/", "|"), small_study(), gradients=True, name_of_device=HOSTILE)
    write_study(folder / "half", small_study(layer="lstm", layer_options={}), finished=3)
    return folder


@pytest.fixture(scope="module")
def page_file(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_page([folder], tmp_path_factory.mktemp("page") / "report.html").path


def test_page_holds_every_row_and_its_verdict(page_file: Path) -> None:
    text = page_file.read_text()
    for row in table1.ROWS[:4]:
        assert row.label in text
        assert f"{row.key}-seed-1" in text
    assert "12.90 ± 0.80" in text
    assert "inside the published spread" in text or "outside the published spread" in text
    assert "7 of 10 trials have not finished." in text
    assert "as published: solved" in text
    assert "http" not in re.sub(r"http://www\.w3\.org/2000/svg|http-equiv", "", text)


def test_page_of_a_whole_table_is_small_and_fast(tmp_path: Path) -> None:
    for row in table1.ROWS:
        write_study(tmp_path / row.key, row.study, points=100, data=PUBLISHED)
    start = time.perf_counter()
    built = build_page([tmp_path], tmp_path / "report.html")
    assert time.perf_counter() - start < 10
    assert built.studies == 7
    assert built.path.stat().st_size < 2_000_000


def test_broken_folders_are_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    good = write_study(tmp_path / "all" / "good", small_study())
    future = write_study(tmp_path / "all" / "future", small_study())
    (future / "study.json").write_text(json.dumps({"format": 99}))
    garbled = write_study(tmp_path / "all" / "garbled", small_study(hidden=9))
    (garbled / "trials.jsonl").write_text('{"trial": 0, "sta')
    cut = write_study(tmp_path / "all" / "cut", small_study(hidden=10))
    (cut / "curves.safetensors").write_bytes(b"123")
    nothing = write_study(tmp_path / "all" / "nothing", small_study(hidden=11), finished=0)
    other = write_study(tmp_path / "all" / "other", small_study(hidden=12), version="0.9.0")
    (tmp_path / "empty").mkdir()
    built = build_page([tmp_path / "all", tmp_path / "empty", tmp_path / "missing"], tmp_path / "report.html")
    assert built.studies == 5
    words = "\n".join(built.problems)
    for expected in (
        f"{future / 'study.json'}: expected a study of format 1, got 99.",
        f"{garbled / 'trials.jsonl'}: not a list of trials",
        f"{cut / 'curves.safetensors'}: not readable",
        f"{tmp_path / 'empty'}: there is no study in this folder (no study.json).",
        f"{tmp_path / 'missing'}: there is no such folder.",
        "The studies come from different versions of mistrnn: 0.1.0, 0.9.0.",
    ):
        assert expected in words
    text = built.path.read_text()
    for name in (good.name, garbled.name, cut.name, nothing.name, other.name):
        assert f"{name}: MIST" in text
    assert "expected a study of format 1, got 99." in text


def test_no_study_at_all_is_an_error_and_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"expected at least one study to report on:\n  .*no study.json"):
        build_page([tmp_path], tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_page_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    write_study(tmp_path / "study", small_study())
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot write .*file/report.html: File exists"):
        build_page([tmp_path / "study"], tmp_path / "file" / "report.html")


class Opened:
    """The page in the browser, with everything it said and asked for."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.page = browser.new_page(**options)
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())


@pytest.fixture
def opened(browser: Any, page_file: Path) -> Any:
    found = Opened(browser, page_file, viewport={"width": 1280, "height": 900})
    yield found
    found.page.close()


def test_it_opens_without_errors_or_requests_and_shows_every_row(opened: Opened, page_file: Path) -> None:
    page = opened.page
    assert opened.said == []
    assert opened.asked == [page_file.as_uri()]
    rows = page.locator("section#paper-1 tbody tr")
    assert rows.count() == 4
    assert "Simple RNN, 198 units" in rows.nth(0).inner_text()
    charts = page.locator("figure.chart")
    assert charts.count() >= 2 * 11
    for number in range(charts.count()):
        assert charts.nth(number).locator("svg[role=img] path, svg[role=img] circle").count() > 0


def test_a_hostile_name_stays_text(opened: Opened) -> None:
    page = opened.page
    assert page.title() == "Recurrent layers compared"
    assert page.locator("img").count() == 0
    heading = page.locator("article h3", has_text="onerror").first
    assert HOSTILE in heading.inner_text()
    assert "49" not in heading.inner_text().replace("{{7*7}}", "")


def test_series_are_hidden_and_shown_again(opened: Opened) -> None:
    figure = opened.page.locator("section#paper-1 figure.chart").first
    lines = figure.locator("svg[role=img] path[stroke]")
    before = lines.count()
    button = figure.locator(".legend button").first
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert lines.count() == before - 1
    button.press("Enter")
    assert button.get_attribute("aria-pressed") == "true"
    assert lines.count() == before


def test_the_scale_becomes_logarithmic(opened: Opened) -> None:
    figure = opened.page.locator("section#paper-1 figure.chart").first
    ticks = figure.locator("svg[role=img] text")
    before = ticks.all_inner_texts()
    figure.get_by_label("logarithmic scale").check()
    assert ticks.all_inner_texts() != before


def test_values_are_read_by_pointer_and_by_keys(opened: Opened) -> None:
    figure = opened.page.locator("section#paper-1 figure.chart").first
    svg, tip = figure.locator("svg[role=img]"), figure.locator(".tip")
    svg.focus()
    svg.press("ArrowRight")
    first = tip.inner_text()
    assert re.search(r"RNN, 198 units, seed 0: [\d.]+% at optimisation steps 750", first)
    svg.press("ArrowRight")
    assert tip.inner_text() != first
    svg.press("ArrowDown")
    assert "seed 1" in tip.inner_text()
    box = svg.bounding_box()
    opened.page.mouse.move(box["x"] + 5, box["y"] + 5)
    assert tip.inner_text() == ""
    opened.page.mouse.move(box["x"] + box["width"] - 20, box["y"] + box["height"] - 60)
    assert "%" in tip.inner_text()


def test_tables_are_sorted_both_ways_and_by_number(opened: Opened) -> None:
    table = opened.page.locator("section#paper-1 table")
    header = table.locator("th button", has_text="error %, ours")
    shown = table.locator("tbody tr td:nth-child(2)")
    for direction in ("ascending", "descending"):
        header.click()
        assert header.locator("..").get_attribute("aria-sort") == direction
        values = [float(text.split()[0]) for text in shown.all_inner_texts()]
        assert values == sorted(values, reverse=direction == "descending")


def test_settings_are_one_click_away(opened: Opened) -> None:
    article = opened.page.locator("article").first
    article.locator("summary", has_text="Settings").click()
    assert "learning_rate" not in article.locator("dl").inner_text()  # none was set
    for word in ("batch_size", "100", "optimizer", "sgd", "torch"):
        assert word in article.locator("dl").inner_text()


def test_links_lead_to_the_study(opened: Opened) -> None:
    link = opened.page.locator("section#paper-1 tbody th a").first
    target = link.get_attribute("href")
    assert opened.page.locator(target).count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_is_accessible_and_fits(browser: Any, page_file: Path, scheme: str, width: int) -> None:
    found = Opened(browser, page_file, viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = found.page
    for details in page.locator("details").all():
        details.evaluate("element => element.open = true")
    result = Axe().run(page)
    assert [(v["id"], v["nodes"][0]["html"]) for v in result.response["violations"]] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


def test_it_can_be_printed(browser: Any, page_file: Path) -> None:
    found = Opened(browser, page_file)
    found.page.emulate_media(media="print")
    assert not found.page.locator("nav").is_visible()
    assert found.page.locator("section#paper-1 svg[role=img]").first.is_visible()
    assert len(found.page.pdf()) > 20_000
    found.page.close()
