"""The report page in a browser."""

import dataclasses

import numpy as np
import pytest
from oracles.operating_points import operating_points
from PIL import Image
from report.browser import Watched, contrasts_of, find_broken_words, find_violations, open_browser, spread_of
from report.finished_workdir import make_split
from trained_workdir import small_settings

from stepcot_jax.chain import DEFAULT_CHAIN, NOT_ANNOTATED, Chain, Step
from stepcot_jax.data.phantom.phantom import draw_case
from stepcot_jax.evaluation.calibration import fit_calibration
from stepcot_jax.evaluation.chains import bootstrap, evaluate
from stepcot_jax.evaluation.operating_points import OperatingPoints, Rule
from stepcot_jax.evaluation.predictions import FACTS, Predictions, SplitPredictions
from stepcot_jax.pages.figures import draw_lines
from stepcot_jax.pages.pictures import write_picture
from stepcot_jax.pages.shell import Section
from stepcot_jax.reading.finished import FinishedRun
from stepcot_jax.tools.report.cases import ShownCase, write_cases
from stepcot_jax.tools.report.page import render, write_page
from stepcot_jax.tools.report.sections import write_operating_section, write_settings

EVIL = '</script><script>document.title = "broken"</script>"><img src=x onerror="document.title=\'broken\'">'
NUM_CASES = 200


def make_cases(number_of=NUM_CASES, evil=EVIL):
    """Phantom cases of 224 px with random answers; each phantom is used several times."""
    rng = np.random.default_rng(0)
    drawn = [draw_case(index, seed=0, size=224, prevalence="flat") for index in range(40)]
    cases = []
    for number in range(number_of):
        one = drawn[number % len(drawn)]
        # Separate noise per picture, so that JPEG sizes are realistic.
        pixels = np.clip(one.image + rng.normal(0, 4, one.image.shape), 0, 255).astype(np.uint8)
        probabilities = np.zeros((7, 9))
        for place, step in enumerate(DEFAULT_CHAIN.steps):
            probabilities[place, : step.num_answers] = rng.dirichlet(np.full(step.num_answers, 0.4))
        truth = np.array(one.case.answers)
        truth[rng.random(7) < 0.1] = NOT_ANNOTATED
        cases.append(
            ShownCase(
                name=f"{number} {evil}",
                about=one.case.origin + evil,
                picture=write_picture(np.repeat(pixels[:, :, None], 3, axis=2)),
                report=one.case.report + evil,
                truth=truth,
                probabilities=probabilities,
                sets=probabilities > 0.1,
                inconsistent=f"rule {evil}" if number % 9 == 0 else "",
                maps=rng.random((7, 14, 14)),
            )
        )
    return cases


@dataclasses.dataclass(frozen=True)
class Written:
    cases: list
    path: object

    @property
    def url(self):
        return f"file://{self.path}"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    cases = make_cases()
    curves = draw_lines([(EVIL, [(1, 0.1), (2, 0.4), (3, 0.5)])], title=EVIL, x_label="epoch", y_label="accuracy")
    sections = [
        Section("curves", EVIL, EVIL, curves),
        Section("cases", "Cases", "", write_cases(cases, DEFAULT_CHAIN, notes=[EVIL])),
    ]
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(write_page(title=f"Run {EVIL}", about=[EVIL], sections=sections))
    return Written(cases, path)


@pytest.fixture(scope="module")
def browser():
    with open_browser() as opened:
        yield opened


@pytest.fixture
def page(browser, written):
    watched = Watched(browser)
    watched.tab.goto(written.url)
    yield watched
    watched.close()
    assert watched.complaints == []
    assert {url.split(":")[0] for url in watched.requests} <= {"file", "data"}


def test_200_cases_take_less_than_10_mb(written):
    size = written.path.stat().st_size
    assert 1e6 < size < 10e6


def answers_of(case):
    return case.probabilities.argmax(axis=1)


def count_right(cases, judged):
    steps = range(7) if judged == "chain" else [int(judged)]
    right = wrong = 0
    for case in cases:
        pairs = [(case.truth[step], answers_of(case)[step]) for step in steps if case.truth[step] != NOT_ANNOTATED]
        right += bool(pairs) and all(truth == answer for truth, answer in pairs)
        wrong += any(truth != answer for truth, answer in pairs)
    return right, wrong


def shown(page):
    words = page.tab.locator("#count").inner_text().split()
    assert words[1:] == ["of", str(NUM_CASES), "cases"]
    assert page.tab.locator("#gallery .case-card").count() == int(words[0])
    return int(words[0])


def test_filters_count_what_they_say(page, written):
    assert shown(page) == NUM_CASES
    for judged in ("6", "0", "chain"):
        page.tab.select_option("[name=judged]", judged)
        counts = []
        for value in ("right", "wrong"):
            page.tab.locator(f"[name=result][value={value}]").check(force=True)
            counts.append(shown(page))
        assert tuple(counts) == count_right(written.cases, judged)
    page.tab.locator("[name=result][value=all]").check(force=True)
    page.tab.locator("[name=inconsistent]").check()
    assert shown(page) == sum(case.inconsistent != "" for case in written.cases)
    page.tab.locator("[name=inconsistent]").uncheck()
    page.tab.select_option("[name=diagnosis]", "4")
    assert shown(page) == sum(case.truth[6] == 4 for case in written.cases)


def test_a_filter_that_leaves_nothing_says_so(page, written):
    page.tab.select_option("[name=judged]", "chain")
    page.tab.locator("[name=result][value=right]").check(force=True)
    assert shown(page) == count_right(written.cases, "chain")[0] == 0
    assert page.tab.locator("#nothing").is_visible()


def test_text_of_the_data_is_shown_as_text(page, written):
    page.tab.locator(".case-card").nth(5).click()
    assert page.tab.locator("#case .report").inner_text() == written.cases[5].report
    assert page.tab.locator("#case-title").inner_text() == written.cases[5].name
    assert page.tab.title() == f"Run {EVIL}"
    assert page.tab.locator("#case script, #case img[onerror]").count() == 0
    assert page.tab.locator("h1").inner_text() == f"Run {EVIL}"
    assert page.tab.locator("#curves h2").inner_text() == EVIL


def test_an_inline_script_would_not_run(page):
    """The content security policy stops scripts even if the escaping fails."""
    page.tab.evaluate("""() => {
        const script = document.createElement("script");
        script.textContent = "document.title = 'broken'";
        document.body.append(script);
        const image = document.createElement("div");
        image.innerHTML = "<img src=x onerror=\\"document.title='broken'\\">";
        document.body.append(image);
    }""")
    page.tab.wait_for_timeout(200)
    assert page.tab.title() != "broken"
    assert page.complaints
    assert all("Content Security Policy" in complaint for complaint in page.complaints)
    page.complaints.clear()


def test_a_case_is_read_by_keyboard(page, written):
    page.tab.locator(".case-card").first.focus()
    page.tab.keyboard.press("Enter")
    dialog = page.tab.locator("dialog#case")
    assert dialog.is_visible()
    assert page.tab.locator("#case-place").inner_text() == f"1 of {NUM_CASES}"
    page.tab.keyboard.press("ArrowLeft")
    assert page.tab.locator("#case-title").inner_text() == written.cases[-1].name
    page.tab.keyboard.press("ArrowRight")
    page.tab.keyboard.press("ArrowRight")
    assert page.tab.locator("#case-title").inner_text() == written.cases[1].name
    page.tab.keyboard.press("Escape")
    assert not dialog.is_visible()


def test_a_case_shows_every_step_and_its_map(page, written):
    page.tab.locator(".case-card").nth(1).click()
    rows = page.tab.locator("#case .chain tbody tr")
    assert rows.count() == 7
    case = written.cases[1]
    for place, step in enumerate(DEFAULT_CHAIN.steps):
        text = rows.nth(place).inner_text()
        assert step.name in text
        assert step.options[answers_of(case)[place]] in text
        assert f"{100 * case.probabilities[place].max():.0f} %" in text
    canvas = page.tab.locator("#case canvas.map")
    of_last = canvas.evaluate("canvas => canvas.toDataURL()")
    rows.nth(0).locator("button").click()
    assert canvas.evaluate("canvas => canvas.toDataURL()") != of_last
    assert page.tab.locator("#case .pick[aria-pressed=true]").inner_text() == DEFAULT_CHAIN.steps[0].name
    # The canvas is most opaque at the map's maximum.
    place = canvas.evaluate(
        "canvas => { const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;"
        " const alpha = data.filter((_, place) => place % 4 === 3); return alpha.indexOf(Math.max(...alpha)); }"
    )
    assert place == case.maps[0].argmax()
    page.tab.locator("#case .toggle input").uncheck()
    assert not canvas.is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_needs_no_sideways_scrolling(browser, written, tmp_path, scheme):
    page = Watched(browser, width=375, scheme=scheme)
    page.tab.goto(written.url)
    assert page.overflow == 0
    page.tab.locator("#cases").scroll_into_view_if_needed()
    picture = tmp_path / "phone.png"
    page.tab.screenshot(path=picture)
    assert spread_of(picture) > 10
    page.tab.locator(".case-card").first.click()
    assert page.overflow == 0
    box = page.tab.locator("dialog#case").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 375
    page.tab.screenshot(path=picture)
    assert spread_of(picture) > 10
    background = page.tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(20, 23, 26)") == (scheme == "dark")
    page.close()
    assert page.complaints == []


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A page with tables, heat cells, folded parts, settings and 12 cases, in ordinary words."""
    drawn = [draw_case(index, seed=0, size=32, prevalence="flat").case for index in range(30)]
    split = make_split(drawn, seed=3)
    metrics, intervals = evaluate(split.predictions, DEFAULT_CHAIN), bootstrap(split, DEFAULT_CHAIN, num_resamples=20)
    folded = render(
        "consistency.html.j2",
        most=5,
        chains=[
            {
                "name": "student",
                "share": 0.5,
                "num_cases": 30,
                "broken": [("Detection: Mixed with Diagnosis: Normal", 2)],
            }
        ],
    )
    sections = [
        Section(
            "results",
            "Results",
            "In percent.",
            render(
                "results.html.j2",
                metrics=metrics,
                intervals=intervals,
                mean_of="mean of the steps",
                difference="",
                notes=[],
            ),
        ),
        Section("confusion", "Confusion", "", render("confusion.html.j2", metrics=metrics)),
        Section("consistency", "Consistency", "", folded),
        Section("cases", "Cases", "", write_cases(make_cases(12, ""), DEFAULT_CHAIN, notes=[])),
        Section("settings", "Settings", "", write_settings(small_settings(), {})),
    ]
    path = tmp_path_factory.mktemp("whole") / "report.html"
    path.write_text(write_page(title="Run quickstart", about=["A run."], sections=sections))
    return f"file://{path}"


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")])
def test_axe_finds_nothing_and_heat_cells_can_be_read(browser, whole, width, scheme):
    page = Watched(browser, width=width, scheme=scheme)
    page.tab.goto(whole)
    assert find_violations(page.tab) == []
    cells = page.tab.locator(".confusion td")
    assert page.tab.locator(".confusion td.heat-9").count() > 0
    assert min(contrasts_of(cells)) >= 4.5
    for level in range(10):  # also those that these predictions do not have
        cells.nth(level).evaluate("(cell, level) => { cell.className = `heat-${level}`; }", level)
    assert min(contrasts_of(cells)) >= 4.5
    page.tab.locator(".case-card").first.click()
    assert find_violations(page.tab) == []
    page.close()
    assert page.complaints == []


def test_a_phone_breaks_no_word_and_shows_that_tables_scroll(browser, whole, tmp_path):
    page = Watched(browser, width=390)
    page.tab.goto(whole)
    assert page.overflow == 0
    assert find_broken_words(page.tab) == []
    table = page.tab.locator("#results .scrolled").first
    assert table.evaluate("each => each.scrollWidth - each.clientWidth") > 50

    def brightness_of_the_right_edge():
        table.screenshot(path=tmp_path / "table.png")
        return np.median(np.asarray(Image.open(tmp_path / "table.png").convert("L"))[:, -4:])

    at_first = brightness_of_the_right_edge()
    table.evaluate("each => { each.scrollLeft = each.scrollWidth; }")
    assert at_first < brightness_of_the_right_edge() - 20
    page.tab.locator(".case-card").first.click()
    assert find_broken_words(page.tab) == []
    page.close()


def test_filters_stay_in_the_address(browser, whole):
    page = Watched(browser)
    tab = page.tab
    tab.goto(whole)

    def state():
        tab.wait_for_timeout(150)
        result = tab.locator("[name=result]:checked").get_attribute("value")
        return tab.evaluate("location.hash"), result, tab.locator("[name=judged]").input_value()

    assert state() == ("", "all", "6")
    tab.locator("[name=result][value=wrong]").check(force=True)
    tab.select_option("[name=judged]", "2")
    both = ("#cases&result=wrong&judged=2", "wrong", "2")
    assert state() == both
    count = tab.inner_text("#count")
    tab.reload()
    assert state() == both
    assert tab.inner_text("#count") == count
    tab.click("nav a[href='#results']")
    assert state() == ("#results&result=wrong&judged=2", "wrong", "2")
    tab.go_back()
    assert state() == both
    tab.go_back()
    assert state() == ("#cases&result=wrong", "wrong", "6")
    tab.go_back()
    assert state() == ("", "all", "6")
    tab.goto(f"{whole}#cases&result=right&judged=99&nonsense=%3Cb%3E")
    assert state()[1:] == ("right", "6")
    page.close()
    assert page.complaints == []


def test_print_shows_what_the_screen_folds_away(browser, whole, tmp_path):
    page = Watched(browser, width=390, scheme="dark")
    tab = page.tab
    tab.goto(whole)
    tab.locator("[name=result][value=right]").check(force=True)
    tab.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    tab.emulate_media(media="print")
    assert tab.locator("#printed article:visible").count() == 12
    assert tab.locator("#printed article").nth(3).locator("tbody tr").count() == 7
    tab.wait_for_function("[...document.querySelectorAll('#printed img')].every((each) => each.naturalWidth > 0)")
    assert tab.get_by_text("Detection: Mixed with Diagnosis: Normal").is_visible()
    assert not tab.locator("nav, #filters, #gallery").first.is_visible()
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    tab.set_viewport_size({"width": 690, "height": 1000})  # of a sheet of A4 with its margins
    assert tab.locator(".scrolled").evaluate_all("each => Math.max(...each.map((one) => one.scrollWidth))") <= 690
    tab.evaluate("window.dispatchEvent(new Event('afterprint'))")
    tab.emulate_media(media="screen")
    assert tab.locator("#printed article").count() == 0
    assert not tab.get_by_text("Detection: Mixed with Diagnosis: Normal").is_visible()
    tab.pdf(path=tmp_path / "page.pdf", format="A4")
    num_pages = (tmp_path / "page.pdf").read_bytes().count(b"/Type /Page\n")
    assert num_pages >= 7  # 12 cases, at most three of them on one
    page.close()


@pytest.fixture(scope="module")
def curves(tmp_path_factory):
    """A page with the operating points of 120 phantoms, whose answers are named with markup."""
    steps = (
        Step("Detection", "?", ("No", "Yes")),
        Step(f"Diagnosis {EVIL}", "?", ("Normal", f"Mass {EVIL}", "Nodule")),
    )
    chain, rng = Chain(steps), np.random.default_rng(0)
    splits = []
    for _ in range(2):
        labels = np.stack([rng.integers(0, step.num_answers, 120) for step in steps], axis=1).astype(np.int32)
        logits = {model: rng.normal(0, 1, (120, 2, 3)).astype(np.float32) for model in ("teacher", "student")}
        for own in logits.values():
            np.put_along_axis(own, labels[..., None], np.take_along_axis(own, labels[..., None], 2) + 1.5, 2)
            own[:, 0, 2] = -1e9
        facts = {fact: np.array([""] * 120) for fact in FACTS}
        splits.append(SplitPredictions(Predictions(np.arange(120, dtype=np.int32), labels, logits), facts))
    val, test = splits
    calibration, rule = fit_calibration(val.predictions, chain), Rule()
    points = operating_points(val, test, chain, calibration=calibration, rule=rule, num_resamples=20)
    run = FinishedRun(None, None, chain, (), {}, test, calibration, OperatingPoints(rule, points))
    path = tmp_path_factory.mktemp("curves") / "report.html"
    path.write_text(write_page(title="Run", about=[], sections=[write_operating_section(run)]))
    return path, points


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_threshold_can_be_tried_by_keyboard_and_the_chosen_point_is_marked(browser, curves, tmp_path, width, scheme):
    path, points = curves
    watched = Watched(browser, width=width, scheme=scheme)
    tab = watched.tab
    tab.goto(f"file://{path}")
    assert tab.input_value("select[name=model]") == "student"
    assert tab.input_value("select[name=step]").startswith("Diagnosis </script>")
    tab.select_option("select[name=answer]", index=1)
    point = next(own for (model, _, answer), own in points.items() if model == "student" and answer.startswith("Mass"))
    said = tab.inner_text("#operating-figures")
    assert said.startswith(f"Chosen on validation ({100 * point.threshold.value:.1f} %).")
    assert (
        f"sensitivity {100 * point.sensitivity.value:.1f} %, specificity {100 * point.specificity.value:.1f} %" in said
    )
    for name in ("roc", "pr"):
        assert tab.locator(f"#{name} circle.chosen").count() == 1
        marked, tried = (tab.locator(f"#{name} circle.{kind}") for kind in ("chosen", "current"))
        assert [marked.get_attribute(end) for end in ("cx", "cy")] == [tried.get_attribute(end) for end in ("cx", "cy")]
    place = float(tab.locator("#roc circle.chosen").get_attribute("cx"))
    assert place == pytest.approx(46 + 240 * (1 - point.specificity.value), abs=0.1)
    tab.focus("input[name=level]")
    for _ in range(5):
        tab.keyboard.press("ArrowRight")
    moved = tab.inner_text("#operating-figures")
    assert moved.startswith("Called from ")
    assert tab.locator("input[name=level]").get_attribute("aria-valuetext") == moved
    tab.keyboard.press("Home")
    assert tab.inner_text("#operating-figures").startswith("Nothing is called: 0 of ")
    assert tab.locator("#pr circle.current").count() == 0  # nothing is called: no precision
    tab.keyboard.press("Tab")
    tab.keyboard.press("Enter")
    assert tab.inner_text("#operating-figures") == said
    tab.select_option("select[name=model]", "teacher")
    tab.select_option("select[name=step]", "Detection")
    assert "cases with “No”" in tab.inner_text("#operating-figures")
    tab.locator("#operating").screenshot(path=tmp_path / "curves.png")
    assert spread_of(tmp_path / "curves.png") > 5
    assert (watched.complaints, watched.overflow) == ([], 0)
    assert [url for url in watched.requests if not url.startswith(("file://", "data:"))] == []
    assert tab.title() == "Run"
    watched.close()
