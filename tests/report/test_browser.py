"""The report page in a browser."""

import dataclasses

import numpy as np
import pytest
from report.browser import Watched, open_browser, spread_of

from stepcot_jax.chain import DEFAULT_CHAIN, NOT_ANNOTATED
from stepcot_jax.data.phantom.phantom import draw_case
from stepcot_jax.report.embedded_pictures import write_picture
from stepcot_jax.report.figures import draw_lines
from stepcot_jax.report.page import Section, write_page
from stepcot_jax.report.page_cases import ShownCase, write_cases

EVIL = '</script><script>document.title = "broken"</script>"><img src=x onerror="document.title=\'broken\'">'
NUM_CASES = 200


def make_cases():
    """Phantom cases of 224 px with random answers; each phantom is used several times."""
    rng = np.random.default_rng(0)
    drawn = [draw_case(index, seed=0, size=224, prevalence="flat") for index in range(40)]
    cases = []
    for number in range(NUM_CASES):
        one = drawn[number % len(drawn)]
        # Separate noise per picture, so that JPEG sizes are realistic.
        pixels = np.clip(one.image + rng.normal(0, 4, one.image.shape), 0, 255).astype(np.uint8)
        probabilities = np.zeros((7, 9))
        for place, step in enumerate(DEFAULT_CHAIN.steps):
            probabilities[place, : step.num_answers] = rng.dirichlet(np.full(step.num_answers, 0.4))
        truth = np.array(one.case.labels)
        truth[rng.random(7) < 0.1] = NOT_ANNOTATED
        cases.append(
            ShownCase(
                name=f"{number} {EVIL}",
                about=one.case.origin + EVIL,
                picture=write_picture(np.repeat(pixels[:, :, None], 3, axis=2)),
                report=one.case.report + EVIL,
                truth=truth,
                probabilities=probabilities,
                sets=probabilities > 0.1,
                inconsistent=f"rule {EVIL}" if number % 9 == 0 else "",
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
