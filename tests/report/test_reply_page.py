"""The page in a browser."""

import json

import msgspec
import pytest
from evaluate_replies.asked import ask, write_folder, write_replies
from report.browser import Watched, find_violations, open_browser, spread_of

from stepcot_jax.evaluation import reply_page
from stepcot_jax.tools.evaluate_replies.command import main

EVIL = '</script><script>document.title = "broken"</script>"><img src=x onerror="document.title=\'broken\'">\u202e\x00'


@pytest.fixture(scope="module")
def browser():
    with open_browser() as found:
        yield found


def change(text, place):
    if place % 5 == 0:
        return EVIL
    return text.replace("</think>", "") if place % 5 == 1 else text


def write(tmp_path, *, num_images=20):
    records, pictures = ask(num_images, num_train=2)
    records = [msgspec.structs.replace(each, question=f"{each.question} <b>{EVIL[:30]}") for each in records]
    folder = write_folder(tmp_path, records, pictures)
    first = write_replies(folder / "first.jsonl", records, change=change)
    second = write_replies(folder / "second.jsonl", records, keep=lambda place: place % 7)
    main([str(folder), str(first), str(second), "--out", str(folder / "out"), "--num-resamples", "20"])
    return [record for record in records if record.split == "test"]


def test_replies_can_be_looked_through(tmp_path, browser):
    records = write(tmp_path)
    watched = Watched(browser)
    tab = watched.tab
    tab.goto(f"file://{tmp_path}/out/index.html")
    tab.wait_for_selector("#gallery li")
    assert tab.inner_text("#count") == f"{len(records)} of {len(records)} replies"
    assert tab.locator("#gallery li").count() == 24
    tab.click("#forward")
    assert tab.inner_text("#page-place") == "page 2 of 3"

    def count(**filters):
        for name, value in filters.items():
            tab.select_option(f"select[name={name}]", value)
        found = int(tab.inner_text("#count").split()[0])
        for name in filters:
            tab.select_option(f"select[name={name}]", "0" if name == "model" else "")
        return found

    places = range(8, 8 + len(records))
    assert count(formed="0") == sum(place % 5 < 2 for place in places)
    assert count(answer="1") == count(passed="1") == count(formed="1") == sum(place % 5 > 1 for place in places)
    assert count(model="1", formed="missing") == sum(place % 7 == 0 for place in places)
    assert count(kind="multi") == len(records) // 4
    tab.fill("input[type=search]", records[5].id)
    assert tab.inner_text("#count") == f"1 of {len(records)} replies"
    tab.click("#gallery li button")
    assert tab.inner_text("#case-title") == records[5].id
    boxes = tab.locator("dialog rect.true")
    assert boxes.count() == len(records[5].references)
    x1, y1, x2, y2 = records[5].references[0].corners
    drawn = [float(boxes.first.get_attribute(name)) for name in ("x", "y", "width", "height")]
    assert drawn == [x1, y1, x2 - x1, y2 - y1]
    frame, box = tab.locator("dialog .sheet").bounding_box(), boxes.first.bounding_box()
    assert box["x"] + box["width"] / 2 == pytest.approx(frame["x"] + (x1 + x2) / 2 / 64 * frame["width"], abs=2)
    assert box["y"] + box["height"] / 2 == pytest.approx(frame["y"] + (y1 + y2) / 2 / 64 * frame["height"], abs=2)
    picture = tmp_path / "dialog.png"
    tab.locator("dialog .view").screenshot(path=picture)
    assert spread_of(picture) > 20
    tab.click("#case-close")
    tab.fill("input[type=search]", "")
    for place in range(len(records)):
        if (place + 8) % 5 == 0:
            break
    tab.fill("input[type=search]", records[place].id)
    tab.click("#gallery li button")
    assert "<script>document.title" in tab.inner_text("dialog pre")
    assert "[U+202E][U+0000]" in tab.inner_text("dialog pre")
    assert tab.locator("dialog .problems li").count() >= 1
    tab.click("#case-close")
    broken = next(place for place in places if place % 5 == 1) - 8  # its boxes are read, and do not count
    tab.fill("input[type=search]", records[broken].id)
    assert "V\u00a00.0\u00a0%" in tab.locator("#gallery .about").text_content()
    tab.click("#gallery li button")
    assert tab.locator("dialog rect.predicted").count() >= 1
    assert "0.0\u00a0% (not well formed)" in tab.locator("dialog .facts").text_content()
    assert tab.title().startswith("Replies to ")
    assert watched.complaints == []
    assert [url for url in watched.requests if not url.startswith("data:")] == [f"file://{tmp_path}/out/index.html"]
    watched.close()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_axe_finds_nothing_filters_stay_and_print_is_whole(tmp_path, browser, width, scheme):
    records = write(tmp_path, num_images=8)
    watched = Watched(browser, width=width, scheme=scheme)
    tab = watched.tab
    tab.goto(f"file://{tmp_path}/out/index.html")
    tab.wait_for_selector("#gallery li")
    assert find_violations(tab) == []
    tab.select_option("select[name=kind]", "multi")
    tab.fill("input[type=search]", "a b&c")
    assert tab.evaluate("location.hash") == "#replies&kind=multi&search=a+b%26c"
    tab.reload()
    assert tab.input_value("input[type=search]") == "a b&c"
    assert tab.inner_text("#count").startswith("0 of")
    tab.go_back()
    tab.wait_for_function("location.hash === ''")
    assert tab.inner_text("#count") == f"{len(records)} of {len(records)} replies"
    tab.locator("#gallery button").first.click()
    assert find_violations(tab) == []
    tab.click("#case-close")
    tab.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    tab.emulate_media(media="print")
    assert tab.locator("#printed article:visible").count() == len(records)
    tab.set_viewport_size({"width": 690, "height": 1000})  # of a sheet of A4 with its margins
    assert watched.overflow == 0
    assert watched.complaints == []
    watched.close()


def test_many_pictures_become_files_that_load_when_they_are_seen(tmp_path, browser, monkeypatch):
    monkeypatch.setattr(reply_page, "_MOST_EMBEDDED", 10_000)
    write(tmp_path)
    assert len(list((tmp_path / "out" / "pictures").glob("*.jpg"))) == 18
    for width in (1280, 390):
        watched = Watched(browser, width=width, scheme="dark")
        watched.tab.goto(f"file://{tmp_path}/out/index.html")
        watched.tab.wait_for_selector("#gallery li")
        watched.tab.click("#gallery li button")
        watched.tab.wait_for_function("document.querySelector('dialog img').naturalWidth === 64")
        assert watched.complaints == []
        assert watched.overflow == 0
        watched.close()


def test_pictures_that_cannot_be_read_are_counted(tmp_path, capsys):
    records, pictures = ask(4, num_train=1)
    folder = write_folder(tmp_path, records, dict(list(pictures.items())[:3]))
    (folder / records[4].image).write_bytes(b"no picture")
    path = write_replies(folder / "mine.jsonl", records)
    main([str(folder), str(path), "--out", str(folder / "out"), "--num-resamples", "5"])
    assert "2 images could not be read" in capsys.readouterr().out
    page = (folder / "out" / "index.html").read_text()
    data = json.loads(page.partition('id="reply-data">')[2].partition("</script>")[0])
    assert [picture is None for picture in data["pictures"]] == [True, False, True]


def test_a_page_shows_no_more_than_asked_and_shortens_long_replies(tmp_path):
    records, pictures = ask(4)
    folder = write_folder(tmp_path, records, pictures)
    path = write_replies(folder / "mine.jsonl", records, change=lambda text, place: text + "x" * 100_000)
    flags = ["--num-shown", "5", "--num-resamples", "5"]
    main([str(folder), str(path), "--out", str(folder / "out"), *flags])
    page = (folder / "out" / "index.html").read_text()
    assert "The page shows the first 5 of 16." in page
    assert len(page) < 200_000
    data = json.loads(page.partition('id="reply-data">')[2].partition("</script>")[0])
    assert len(data["records"]) == len(data["models"][0]["replies"]) == 5
    assert len(data["pictures"]) == 2
    assert all("characters)" in reply["text"] for reply in data["models"][0]["replies"])
