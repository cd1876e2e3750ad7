"""The report page: what it holds, what it says of broken folders, and how it behaves in a browser."""

import json
import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from safetensors.torch import load_file, save_file

from mistrnn.errors import UsageError
from mistrnn.paper import figure3, table1
from mistrnn.report import build_page, charts
from mistrnn.report.collected import collect
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
    write_study(folder / "copy", row.with_settings(0, None, 1000), level=1e-5)
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
    assert "seed 0: " in text
    assert text.count("inside the published spread") + text.count("outside the published spread") >= 4
    assert "7 of 10 trials have not finished." in text
    assert "as published: solved" in text
    assert "http" not in re.sub(r"http://www\.w3\.org/2000/svg|http-equiv", "", text)


def test_page_takes_the_place_of_a_page_and_of_nothing_else(tmp_path: Path) -> None:
    study, mine = write_study(tmp_path / "study", small_study()), tmp_path / "labels.csv"
    mine.write_text("id,label\n")
    with pytest.raises(UsageError, match=r"labels\.csv: there is a file already that `mist` has not written"):
        build_page([study], mine)
    assert mine.read_text() == "id,label\n"
    for _ in range(2):
        build_page([study], tmp_path / "report.html")


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
        f"{garbled / 'trials.jsonl'}, line 1: not JSON",
        f"{cut / 'curves.safetensors'}: not readable",
        f"{tmp_path / 'empty'}: there is no study in this folder (no study.json).",
        f"{tmp_path / 'missing'}: there is no such folder.",
    ):
        assert expected in words
    assert built.notes == ["The studies come from different versions of mistrnn: 0.1.0, 0.9.0."]
    assert built.notes[0] in built.path.read_text()
    text = built.path.read_text()
    for name in (good.name, garbled.name, cut.name, nothing.name, other.name):
        assert f"{name}: MIST" in text
    assert "expected a study of format 1, got 99." in text


ODD_ROWS: list[dict[str, Any]] = [
    {"val_error": "0.1"}, {"val_error": None}, {"learning_rate": 0}, {"learning_rate": None}, {"group": 0}, {"trial": "x"},
    {"status": "great"}, {"seconds": [1]}, {"test_error": float("nan")}, {"device": 3},
]  # fmt: skip


def test_odd_lines_are_named_and_the_others_shown(tmp_path: Path) -> None:
    study = write_study(tmp_path / "odd", small_study(trials=20))
    lines = (study / "trials.jsonl").read_text().splitlines()
    for k, change in enumerate(ODD_ROWS):
        lines[5 + k] = json.dumps({**json.loads(lines[5 + k]), **change})
    del_key = json.loads(lines[3])
    del_key.pop("best_step")
    lines[3] = json.dumps(del_key)
    (study / "trials.jsonl").write_text("\n".join([*lines[:-1], lines[-1][:30]]))
    built = build_page([tmp_path], tmp_path / "report.html")
    assert len(built.problems) == len(ODD_ROWS) + 2
    assert all(f"{study / 'trials.jsonl'}, line " in problem for problem in built.problems)
    assert f"{20 - len(ODD_ROWS) - 2} trials" in built.path.read_text()


@pytest.mark.parametrize("settings", [{"task_settings": None}, {"layer_options": []}, {"layer": "zrnn"}, {"seed": "0"}])
def test_odd_settings_are_named_with_their_file(tmp_path: Path, settings: dict[str, Any]) -> None:
    write_study(tmp_path / "good", small_study())
    odd = write_study(tmp_path / "odd", small_study())
    stored = json.loads((odd / "study.json").read_text())
    (odd / "study.json").write_text(json.dumps({**stored, "settings": {**stored["settings"], **settings}}))
    built = build_page([tmp_path], tmp_path / "report.html")
    assert built.studies == 1
    assert built.problems[0].startswith(f"{odd / 'study.json'}: ")


def test_odd_files_and_names_are_named_and_the_others_shown(tmp_path: Path) -> None:
    write_study(tmp_path / "all" / "good", small_study())
    (tmp_path / "all" / "link").symlink_to(tmp_path / "all")
    odd = write_study(tmp_path / "all" / "odd", small_study(), gradients=True)
    save_file({"trial": torch.zeros(3), "step": torch.zeros(2)}, odd / "curves.safetensors")
    save_file({"norms": torch.zeros(3)}, odd / "gradients.safetensors")
    folder = write_study(tmp_path / "all" / "folder", small_study())
    (folder / "trials.jsonl").unlink()
    (folder / "trials.jsonl").mkdir()
    lost = write_study(tmp_path / "all" / "lost", small_study())
    columns = load_file(lost / "curves.safetensors")
    columns["val_error"][:] = float("nan")
    save_file(columns, lost / "curves.safetensors")
    write_study(Path(os.fsdecode(bytes(tmp_path / "all") + b"/b\xff")), small_study())
    built = build_page([tmp_path / "all", tmp_path / "all" / "good"], tmp_path / "report.html")
    assert built.studies == 4  # each once, however it is reached
    assert len(built.problems) == 4  # one more, because safetensors opens no file whose path is not text
    assert "trials.jsonl: Is a directory" in "\n".join(built.problems)
    assert "\\udcff" in built.path.read_text()


def test_a_long_study_is_built_in_seconds(tmp_path: Path) -> None:
    write_study(tmp_path / "long", small_study(trials=50, steps=100_000), points=4_000)
    start = time.perf_counter()
    built = build_page([tmp_path], tmp_path / "report.html")
    assert time.perf_counter() - start < 10
    assert built.path.stat().st_size < 300_000


def test_no_study_at_all_is_an_error_and_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"expected at least one study to report on:\n  .*no study.json"):
        build_page([tmp_path], tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_trials_that_were_stopped_early_are_not_drawn_as_diverged(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "study", Study(task="copy", layer="mist", hidden=8, trials=4))
    rows = [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]
    rows[3]["status"] = "stopped"
    (folder / "trials.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    drawn = charts.error_by_learning_rate(collect([folder]).studies[0])
    assert drawn is not None
    assert {one["name"]: len(one["points"]) for one in drawn["series"]} == {
        "finished": 1, "stopped early": 1, "diverged later": 1, "diverged before a validation": 1,
    }  # fmt: skip


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
        assert charts.nth(number).locator("svg[role=application] path, svg[role=application] circle").count() > 0


def test_a_hostile_name_stays_text(opened: Opened) -> None:
    page = opened.page
    assert page.title() == "Recurrent layers compared"
    assert page.locator("img").count() == 0
    heading = page.locator("article h3", has_text="onerror").first
    assert HOSTILE in heading.inner_text()
    assert "49" not in heading.inner_text().replace("{{7*7}}", "")


def test_series_are_hidden_and_shown_again(opened: Opened) -> None:
    figure = opened.page.locator("section#paper-1 figure.chart").first
    lines = figure.locator("svg[role=application] path[stroke]")
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
    ticks = figure.locator("svg[role=application] text[text-anchor=end]")
    assert "0%" in ticks.all_text_contents()
    figure.get_by_label("logarithmic scale").check()
    marks = [float(text.rstrip("%")) for text in ticks.all_text_contents()]
    assert min(marks) > 0
    assert 10 in marks


def test_values_are_read_by_pointer_and_by_keys(opened: Opened) -> None:
    figure = opened.page.locator("section#paper-1 figure.chart").first
    svg, tip = figure.locator("svg[role=application]"), figure.locator(".tip")
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


def test_keys_start_again_when_a_series_is_hidden(opened: Opened) -> None:
    figure = opened.page.locator("section#paper-1 figure.chart").first
    svg, tip = figure.locator("svg[role=application]"), figure.locator(".tip")
    svg.focus()
    svg.press("ArrowDown")
    assert "198 units, seed 0" in tip.inner_text()
    svg.press("End")
    figure.locator(".legend button").first.click()
    svg.focus()
    svg.press("ArrowDown")
    assert "198 units, seed 1" in tip.inner_text()
    assert opened.said == []


def test_no_two_series_look_alike(browser: Any, tmp_path: Path) -> None:
    for row in table1.ROWS:
        for seed in (0, 1):
            write_study(tmp_path / f"{row.key}-{seed}", row.with_settings(seed, None, None), data=PUBLISHED)
    found = Opened(browser, build_page([tmp_path], tmp_path / "report.html").path)
    lines = found.page.locator("section#paper-1 figure.chart svg[role=application] path[stroke]")
    looks = lines.evaluate_all("all => all.map(l => l.getAttribute('stroke') + l.getAttribute('stroke-dasharray'))")
    assert len(looks) == 14
    assert len(set(looks)) == 14
    found.page.close()


def test_a_layer_looks_the_same_with_each_delay_and_jumps_are_cut_and_counted(browser: Any, tmp_path: Path) -> None:
    rows = {(row.study.layer, row.study.task_settings["delay"]): row for row in figure3.rows([50, 100])}
    for (layer, delay), level in {("rnn", 50): 0.02, ("mist", 50): 0.0, ("mist", 100): 0.01}.items():
        write_study(tmp_path / f"{layer}-{delay}", rows[layer, delay].with_settings(0, 10, 1000), level=level)
    other = replace(rows["mist", 100].with_settings(0, 10, 1000), precision="fp32")
    write_study(tmp_path / "again", other, level=0.03)
    found = Opened(browser, build_page([tmp_path], tmp_path / "report.html").path)
    assert found.said == []
    assert (
        "seed 0 is there 2 times, and the one in high is counted" in found.page.locator("section#paper-1").inner_text()
    )
    charts = found.page.locator("section#paper-1 figure.chart")
    looks = [
        dict(
            zip(
                chart.locator(".legend button").all_text_contents(),
                chart.locator(".legend line").evaluate_all("all => all.map(l => l.getAttribute('stroke'))"),
                strict=True,
            )
        )
        for chart in (charts.nth(0), charts.nth(1))
    ]
    assert list(looks[0]) == ["RNN, 203 units", "MIST, 141 units"]
    assert list(looks[1]) == ["MIST, 141 units"]  # one of the two runs, without a seed to tell it from another
    assert looks[0]["MIST, 141 units"] == looks[1]["MIST, 141 units"] != looks[0]["RNN, 203 units"]
    tip, svg = charts.nth(0).locator(".tip"), charts.nth(0).locator("svg[role=application]")
    assert re.fullmatch(r"\d+ values above 10% are cut there", tip.inner_text())
    assert max(float(text.rstrip("%")) for text in svg.locator("text[text-anchor=end]").all_text_contents()) == 10
    note = tip.inner_text()
    svg.focus()
    svg.press("ArrowRight")
    assert re.search(r": [\d.]+% at optimisation steps 50", tip.inner_text())
    found.page.mouse.move(0, 0)
    svg.hover(position={"x": 3, "y": 3})
    assert tip.inner_text() == note
    found.page.close()


def test_zeros_on_a_logarithmic_scale_are_said_and_odd_charts_stop_nothing(browser: Any, tmp_path: Path) -> None:
    write_study(tmp_path / "zero", small_study(), level=0.0)
    write_study(tmp_path / "many", small_study(hidden=9, trials=3_000), points=2)
    write_study(tmp_path / "sums", small_study(task="addition", task_settings={}, hidden=7))
    found = Opened(browser, build_page([tmp_path], tmp_path / "report.html").path)
    assert found.said == []
    figure = found.page.locator("article", has_text="zero: MIST").locator("figure.chart").nth(1)
    figure.get_by_label("logarithmic scale", exact=True).check()
    assert "of 0 or less cannot stand on a logarithmic scale" in figure.locator(".tip").inner_text()
    sums = found.page.locator("article", has_text="sums: MIST").locator("figure.chart").first
    assert not any("%" in text for text in sums.locator("svg[role=application] text").all_text_contents())
    found.page.close()


def test_points_without_a_validation_say_so(opened: Opened) -> None:
    svg = opened.page.locator("article").first.locator("figure.chart").nth(1).locator("svg[role=application]")
    tip = opened.page.locator("article").first.locator("figure.chart").nth(1).locator(".tip")
    svg.focus()
    told = []
    for _ in range(4):
        svg.press("ArrowDown")
        told.append(tip.inner_text())
    assert any("diverged: no validation at learning rate" in text for text in told)


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
    assert found.page.locator("section#paper-1 svg[role=application]").first.is_visible()
    assert len(found.page.pdf()) > 20_000
    found.page.close()
