import json

import msgspec
import pytest
from evaluate_replies.asked import ask, write_folder, write_replies
from report.browser import find_violations, spread_of, watch

from stepcot_jax.tools.evaluate_replies.command import main

EVIL = '</script><script>document.title = "broken"</script>"><img src=x onerror="document.title=\'broken\'">\u202e\x00'


def open_page(browser, folder, **options):
    return watch(browser, f"file://{folder}/out/index.html", ready="#gallery li", **options)


def data_of(folder):
    page = (folder / "out" / "index.html").read_text()
    return page, json.loads(page.partition('id="reply-data">')[2].partition("</script>")[0])


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


@pytest.mark.slow
def test_replies_can_be_looked_through(tmp_path, browser):
    records = write(tmp_path)
    with open_page(browser, tmp_path) as watched:
        tab = watched.tab
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

        def find(record):
            tab.fill("input[type=search]", record.id)
            assert tab.inner_text("#count") == f"1 of {len(records)} replies"
            tab.click("#gallery li button")
            assert tab.inner_text("#case-title") == record.id

        places = range(8, 8 + len(records))
        assert count(formed="0") == sum(place % 5 < 2 for place in places)
        assert count(answer="1") == count(passed="1") == count(formed="1") == sum(place % 5 > 1 for place in places)
        assert count(model="1", formed="missing") == sum(place % 7 == 0 for place in places)
        assert count(kind="multi") == len(records) // 4
        find(records[5])
        boxes = tab.locator("dialog rect.true")
        assert boxes.count() == len(records[5].references)
        x1, y1, x2, y2 = records[5].references[0].corners
        drawn = [float(boxes.first.get_attribute(name)) for name in ("x", "y", "width", "height")]
        assert drawn == [x1, y1, x2 - x1, y2 - y1]
        frame, box = tab.locator("dialog .sheet").bounding_box(), boxes.first.bounding_box()
        for start, size, low, high in (("x", "width", x1, x2), ("y", "height", y1, y2)):
            middle = frame[start] + (low + high) / 2 / 64 * frame[size]
            assert box[start] + box[size] / 2 == pytest.approx(middle, abs=2)
        tab.locator("dialog .view").screenshot(path=tmp_path / "dialog.png")
        assert spread_of(tmp_path / "dialog.png") > 20
        tab.click("#case-close")
        find(next(record for place, record in zip(places, records, strict=True) if place % 5 == 0))
        assert "<script>document.title" in tab.inner_text("dialog pre")
        assert "[U+202E][U+0000]" in tab.inner_text("dialog pre")
        assert tab.locator("dialog .problems li").count() >= 1
        tab.click("#case-close")
        # Boxes of a broken reply are read, and do not count.
        find(next(record for place, record in zip(places, records, strict=True) if place % 5 == 1))
        assert "V\u00a00.0\u00a0%" in tab.locator("#gallery .about").text_content()
        assert tab.locator("dialog rect.predicted").count() >= 1
        assert "0.0\u00a0% (not well formed)" in tab.locator("dialog .facts").text_content()
        assert tab.title().startswith("Replies to ")
        loaded = [url for url in watched.requests if not url.startswith("data:")]
        assert loaded == [f"file://{tmp_path}/out/index.html"]


@pytest.mark.slow
def test_axe_finds_nothing_filters_stay_and_print_is_whole(tmp_path, browser):
    records = write(tmp_path, num_images=8)
    with open_page(browser, tmp_path, width=390, scheme="dark") as watched:
        tab = watched.tab
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
        tab.set_viewport_size({"width": 690, "height": 1000})  # of a sheet of A4 with its margins
        assert watched.overflow == 0


def test_a_page_shows_no_more_than_asked_shortens_long_replies_and_counts_unreadable_pictures(tmp_path, capsys):
    records, pictures = ask(4)
    folder = write_folder(tmp_path, records, dict(list(pictures.items())[:3]))
    (folder / records[0].image).write_bytes(b"no picture")
    path = write_replies(folder / "mine.jsonl", records, change=lambda text, place: text + "x" * 100_000)
    main([str(folder), str(path), "--out", str(folder / "out"), "--num-shown", "5", "--num-resamples", "5"])
    page, data = data_of(folder)
    assert "1 images could not be read" in capsys.readouterr().out
    assert [picture is None for picture in data["pictures"]] == [True, False]
    assert "The page shows the first 5 of 16." in page
    assert len(page) < 200_000
    assert len(data["records"]) == len(data["models"][0]["replies"]) == 5
    assert all("characters)" in reply["text"] for reply in data["models"][0]["replies"])
