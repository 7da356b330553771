from types import SimpleNamespace

import numpy as np
import pytest
from markupsafe import Markup
from PIL import Image
from report.browser import find_broken_words, find_violations, watch
from report.finished_workdir import make_split
from trained_workdir import small_settings

from stepcot_jax.chain import DEFAULT_CHAIN, NOT_ANNOTATED
from stepcot_jax.data.phantom.phantom import draw_case
from stepcot_jax.evaluation.chains import bootstrap, evaluate
from stepcot_jax.pages.figures import draw_lines
from stepcot_jax.pages.shell import Section, tabulate, write_report
from stepcot_jax.reading.finished import Report
from stepcot_jax.tools.report import answers
from stepcot_jax.tools.report.answers import describe_case, write_cases
from stepcot_jax.tools.report.sections import fold, render, write_settings

EVIL = '</script><script>document.title = "broken"</script>"><img src=x onerror="document.title=\'broken\'">'
NUM_CASES = 60


def make_cases(number_of=NUM_CASES, evil=EVIL):
    """Phantom cases of 224 px with random answers; each phantom is used several times."""
    rng = np.random.default_rng(0)
    drawn = [draw_case(index, seed=0, size=224, prevalence="flat") for index in range(min(40, number_of))]
    cases = []
    for number in range(number_of):
        one = drawn[number % len(drawn)]
        # Separate noise per picture, so that JPEG sizes are realistic.
        pixels = np.clip(one.image + rng.normal(0, 4, one.image.shape), 0, 255).astype(np.uint8)
        probabilities = np.zeros((7, 9))
        for index, step in enumerate(DEFAULT_CHAIN.steps):
            probabilities[index, : step.num_answers] = rng.dirichlet(np.full(step.num_answers, 0.4))
        truth = np.array(one.case.answers)
        truth[rng.random(7) < 0.1] = NOT_ANNOTATED
        cases.append(
            SimpleNamespace(
                name=f"{number} {evil}",
                about=one.case.origin + evil,
                pixels=np.repeat(pixels[:, :, None], 3, axis=2),
                report=one.case.report + evil,
                truth=truth,
                probabilities=probabilities,
                sets=probabilities > 0.1,
                inconsistent=f"rule {evil}" if number % 9 == 0 else "",
                maps=rng.random((7, 14, 14)),
                claims=tuple(f"claim {step} {evil}" for step in range(7)),
            )
        )
    return cases


def write_all(cases, notes):
    return write_cases([describe_case(DEFAULT_CHAIN, **vars(case)) for case in cases], DEFAULT_CHAIN, notes=notes)


@pytest.fixture(scope="module")
def cases():
    return make_cases()


@pytest.fixture(scope="module")
def path(cases, tmp_path_factory):
    curves = draw_lines([(EVIL, [(1, 0.1), (2, 0.4), (3, 0.5)])], title=EVIL, x_label="epoch", y_label="accuracy")
    sections = [Section("curves", EVIL, EVIL, curves), write_all(cases, notes=[EVIL])]
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(write_report(title=f"Run {EVIL}", about=[EVIL], sections=sections, writer="a test"))
    return path


@pytest.fixture
def page(browser, path):
    with watch(browser, f"file://{path}") as watched:
        yield watched


def count_right(cases, judged):
    steps = range(7) if judged == "chain" else [int(judged)]
    right = wrong = 0
    for case in cases:
        pairs = [
            (case.truth[step], case.probabilities[step].argmax()) for step in steps if case.truth[step] != NOT_ANNOTATED
        ]
        right += bool(pairs) and all(truth == answer for truth, answer in pairs)
        wrong += any(truth != answer for truth, answer in pairs)
    return right, wrong


def shown(page):
    words = page.tab.locator("#count").inner_text().split()
    assert words[1:] == ["of", str(NUM_CASES), "cases"]
    assert page.tab.locator("#gallery .case-card").count() == min(24, int(words[0]))
    return int(words[0])


@pytest.mark.slow
def test_filters_count_what_they_say(page, cases):
    assert shown(page) == NUM_CASES
    for judged in ("6", "0", "chain"):
        page.tab.select_option("[name=judged]", judged)
        counts = []
        for value in ("wrong", "right"):
            page.tab.locator(f"[name=result][value={value}]").check(force=True)
            counts.append(shown(page))
        assert tuple(reversed(counts)) == count_right(cases, judged)
    assert counts[1] == 0  # no chain is right
    assert page.tab.locator("#nothing").is_visible()
    page.tab.locator("[name=result][value=all]").check(force=True)
    page.tab.locator("[name=inconsistent]").check()
    assert shown(page) == sum(case.inconsistent != "" for case in cases)
    page.tab.locator("[name=inconsistent]").uncheck()
    page.tab.select_option("[name=diagnosis]", "4")
    assert shown(page) == sum(case.truth[6] == 4 for case in cases)


@pytest.mark.slow
def test_text_of_the_data_is_shown_as_text(page, cases):
    page.tab.locator(".case-card").nth(5).click()
    texts = {
        "#case .report": cases[5].report, "#case-title": cases[5].name, "h1": f"Run {EVIL}", "#curves h2": EVIL
    }  # fmt: skip
    assert {name: page.tab.locator(name).inner_text() for name in texts} == texts
    assert page.tab.title() == f"Run {EVIL}"
    assert page.tab.locator("#case script, #case img[onerror]").count() == 0


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


def test_a_case_shows_every_step_and_its_map(page, cases):
    page.tab.locator(".case-card").first.focus()
    page.tab.keyboard.press("Enter")
    assert page.tab.locator("#case-place").inner_text() == f"1 of {NUM_CASES}"
    for key, case in (("ArrowLeft", cases[-1]), ("ArrowRight", cases[0]), ("ArrowRight", cases[1])):
        page.tab.keyboard.press(key)
        assert page.tab.locator("#case-title").inner_text() == case.name
    rows, case = page.tab.locator("#case .chain tbody tr"), cases[1]
    assert rows.count() == 7
    for index, step in enumerate(DEFAULT_CHAIN.steps):
        text = rows.nth(index).inner_text()
        share = f"{100 * case.probabilities[index].max():.0f} %"
        assert all(words in text for words in (step.name, step.options[case.probabilities[index].argmax()], share))
    canvas = page.tab.locator("#case canvas.map")
    of_last = canvas.evaluate("canvas => canvas.toDataURL()")
    rows.nth(0).locator("button").click()
    assert canvas.evaluate("canvas => canvas.toDataURL()") != of_last
    assert page.tab.locator("#case .pick[aria-pressed=true]").inner_text() == DEFAULT_CHAIN.steps[0].name
    # The canvas is most opaque at the map's maximum.
    highest = canvas.evaluate(
        "canvas => { const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;"
        " const alpha = data.filter((_, place) => place % 4 === 3); return alpha.indexOf(Math.max(...alpha)); }"
    )
    assert highest == case.maps[0].argmax()
    assert page.tab.locator("#case .view .note").inner_text().startswith("claim 0 ")
    page.tab.locator("#case .toggle input").uncheck()
    assert not canvas.is_visible()
    page.tab.keyboard.press("Escape")
    assert not page.tab.locator("dialog#case").is_visible()


BROKEN_RULE = "Detection: Mixed with Diagnosis: Normal"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    drawn = [draw_case(index, seed=0, size=32, prevalence="flat").case for index in range(30)]
    split = make_split(drawn, seed=3)
    metrics, intervals = evaluate(split.predictions, DEFAULT_CHAIN), bootstrap(split, DEFAULT_CHAIN, num_resamples=20)
    table = next(answers._tabulate_steps(metrics, intervals))
    of_one = {"model": "teacher", "steps": metrics["teacher"].steps}
    sections = [
        Section("results", "Results", "In percent.", tabulate(table).body),
        Section("confusion", "Confusion", "", render("confusion.html.j2", **of_one)),
        Section("consistency", "Consistency", "", fold("Which answers", Markup("<p>{}</p>").format(BROKEN_RULE))),
        write_all(make_cases(12, ""), notes=[]),
        write_settings(small_settings(), Report()),
    ]
    path = tmp_path_factory.mktemp("whole") / "report.html"
    path.write_text(write_report(title="Run quickstart", about=["A run."], sections=sections, writer="a test"))
    return f"file://{path}"


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_axe_finds_nothing_and_heat_cells_can_be_read(browser, whole, width, scheme):
    with watch(browser, whole, width=width, scheme=scheme) as page:
        assert find_violations(page.tab) == []
        cells = page.tab.locator(".confusion td")
        for level in range(10):  # also those that these predictions do not have
            cells.nth(level).evaluate("(cell, level) => { cell.className = `heat-${level}`; }", level)
        assert find_violations(page.tab) == []
        page.tab.locator(".case-card").first.click()
        assert find_violations(page.tab) == []


def test_a_phone_breaks_no_word_and_shows_that_tables_scroll(browser, whole, tmp_path):
    def brightness_of_the_right_edge():
        table.screenshot(path=tmp_path / "table.png")
        return np.median(np.asarray(Image.open(tmp_path / "table.png").convert("L"))[:, -4:])

    with watch(browser, whole, width=390) as page:
        assert page.overflow == 0
        assert find_broken_words(page.tab) == []
        names = page.tab.locator(".figures th[scope=row]:visible")
        assert names.evaluate_all("all => Math.max(...all.map((name) => name.offsetWidth))") < 390 / 2  # figures stay
        table = page.tab.locator("#results .scrolled").first
        assert table.evaluate("table => table.scrollWidth - table.clientWidth") > 50
        at_first = brightness_of_the_right_edge()
        table.evaluate("table => { table.scrollLeft = table.scrollWidth; }")
        assert at_first < brightness_of_the_right_edge() - 20
        page.tab.locator(".case-card").first.click()
        assert find_broken_words(page.tab) == []


def test_print_shows_what_the_screen_folds_away(browser, whole):
    with watch(browser, whole, width=390, scheme="dark") as page:
        tab, rule = page.tab, page.tab.get_by_text(BROKEN_RULE)
        tab.locator("[name=result][value=right]").check(force=True)
        tab.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        tab.emulate_media(media="print")
        assert rule.is_visible()
        assert not tab.locator("nav, #filters").first.is_visible()
        assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        tab.set_viewport_size({"width": 690, "height": 1000})  # of a sheet of A4 with its margins
        widest = "tables => Math.max(...tables.map((table) => table.scrollWidth))"
        assert tab.locator(".scrolled").evaluate_all(widest) <= 690
        tab.evaluate("window.dispatchEvent(new Event('afterprint'))")
        tab.emulate_media(media="screen")
        assert not rule.is_visible()
