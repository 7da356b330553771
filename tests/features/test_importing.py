import json

import numpy as np
import pytest
from refusals import refuse as refuse_line

from stepcot_jax.chain import Chain, Step
from stepcot_jax.data.records.records import write_records
from stepcot_jax.features.importing import import_features, read_imported_images, read_imported_prompts
from stepcot_jax.host.errors import BadInput
from stepcot_jax.record import Record
from stepcot_jax.tools.features import main

PATIENTS = ["p0", "p1", "p2", "p2", *(f"p{k}" for k in range(4, 30))]
CASES = [
    Record(patient=patient, image=f"images/{k}.png", answers=(0, 1), reasoning=("", ""))
    for k, patient in enumerate(PATIENTS)
]
PATHS = [case.image for case in CASES]
ROWS = np.random.default_rng(0).standard_normal((30, 4)).astype(np.float32)


def save(tmp_path, ids=PATHS, features=ROWS, **more):
    path = tmp_path / "made.npz"
    np.savez(path, ids=np.asarray(ids), features=np.asarray(features), **more)
    return path


def refuse(path, message, ids=None):
    with pytest.raises(BadInput, match=message):
        import_features(path, ids, CASES, path.parent / "store")
    assert not (path.parent / "store").exists()


def assert_stored(tmp_path, rows=ROWS):
    found = read_imported_images(tmp_path / "store", CASES)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, rows)


@pytest.mark.parametrize(("dtype", "order"), [(">f4", "C"), ("<f8", "F"), ("<f2", "C")])
def test_features_come_back_in_the_order_of_the_cases(tmp_path, dtype, order):
    places = np.random.default_rng(1).permutation(30)
    path = save(tmp_path, [PATHS[k] for k in places], ROWS[places].astype(dtype, order=order))
    counts = import_features(path, None, CASES, tmp_path / "store")
    assert (counts.images, counts.prompts, counts.width) == (30, 0, 4)
    assert_stored(tmp_path, ROWS.astype(dtype).astype(np.float32))
    assert read_imported_prompts(tmp_path / "store") is None
    np.testing.assert_array_equal(read_imported_images(tmp_path / "store", CASES[5:3:-1]), ROWS.astype(dtype)[5:3:-1])
    other = [Record(patient="p", image="images/none.png", answers=(0, 1), reasoning=("", ""))]
    refuse_line(
        r"store: 1 of 1 cases have no feature: \['images/none.png'\]", read_imported_images, tmp_path / "store", other
    )


def test_prompts_and_a_second_time(tmp_path):
    prompts = np.arange(6, dtype=np.float32).reshape(2, 3)
    path = save(tmp_path, prompt_features=prompts)
    for _ in range(2):
        assert import_features(path, None, CASES, tmp_path / "store").prompts == 2
    np.testing.assert_array_equal(read_imported_prompts(tmp_path / "store"), prompts)
    with pytest.raises(BadInput, match="use another folder"):
        import_features(save(tmp_path, features=ROWS + 1), None, CASES, tmp_path / "store")
    assert_stored(tmp_path)


def test_ids_may_be_patients_with_one_image_and_paths_of_windows(tmp_path):
    ids = [".\\images\\0.png", "p1", "images/2.png", "./images/3.png", *(f"p{k}" for k in range(4, 30))]
    import_features(save(tmp_path, ids), None, CASES, tmp_path / "store")
    assert_stored(tmp_path)


def write_txt(path):
    path.write_text("\n".join(PATHS) + "\n")


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.json"])
def test_an_npy_with_a_file_of_ids(tmp_path, name):
    np.save(tmp_path / "made.npy", ROWS)
    table = ["number,image_path", *(f"{k},{path}" for k, path in enumerate(PATHS))]
    contents = {"a.json": json.dumps(PATHS), "a.csv": "\n".join(table), "a.txt": "\n".join(PATHS) + "\n"}
    (tmp_path / name).write_text(contents[name])
    import_features(tmp_path / "made.npy", tmp_path / name, CASES, tmp_path / "store")
    assert_stored(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ids": [*PATHS[:-1], PATHS[0]]}, r"1 cases occur more than once: \['images/0.png'\]"),
        ({"ids": [*PATHS[:-1], "images/x.png"]}, r"1 ids match no case: \['images/x.png'\]"),
        ({"ids": [*PATHS[:-1], "p2"]}, "patient 'p2' has 2 images"),
        ({"ids": PATHS[:-1]}, "29 ids for 30 rows"),
        ({"features": np.where(np.arange(30)[:, None] % 15 == 2, np.nan, ROWS)}, r"2 rows .*'2 \(.*/2.png\)', '17 \("),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(tmp_path, change, message):
    refuse(save(tmp_path, **change), message)


class _Bomb:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was run",))


def test_objects_are_never_unpickled(tmp_path):
    bombs = np.array([_Bomb()] * 30, dtype=object)
    refuse(save(tmp_path, ids=bombs), r"made\.npz: cannot be read; expected .* without pickled objects")
    refuse(save(tmp_path, features=bombs), r"made\.npz: cannot be read; expected .* without pickled objects")
    np.save(tmp_path / "made.npy", bombs)
    write_txt(tmp_path / "ids.txt")
    refuse(tmp_path / "made.npy", "cannot be read", tmp_path / "ids.txt")


BROKEN = [
    *(("made.npy", content, "cannot be read") for content in (b"", b"PK\x03\x04", b"\x93NUMPY\x01\x00\x10\x00[[[[")),
    *(
        ("ids.csv", b"name\nimages/0.png\n", r"columns are \['name'\]"),
        ("ids.json", b"7", "Expected `array`, got `int`"),
    ),
    ("ids.xml", b"", r"suffix '.xml' is not one of .txt"),
]


@pytest.mark.parametrize(("name", "content", "message"), BROKEN)
def test_broken_files_are_refused(tmp_path, name, content, message):
    np.save(tmp_path / "made.npy", ROWS)
    write_txt(tmp_path / "ids.txt")
    (tmp_path / name).write_bytes(content)
    refuse(tmp_path / "made.npy", message, tmp_path / (name if name.startswith("ids") else "ids.txt"))


def test_the_command_imports_for_a_folder_without_its_images(tmp_path, capsys):
    step = Step("Size", "How large?", ("Small", "Large"))
    write_records(tmp_path / "root", chain=Chain((step, step)), cases=CASES)
    path = save(tmp_path, prompt_features=ROWS[:2])
    arguments = [str(path), "--root", str(tmp_path / "root"), "--store", str(tmp_path / "store")]
    main([*arguments, "--step-names", "One", "Two"])
    assert "features of 30 images and 2 prompts, width 4" in capsys.readouterr().out
    with pytest.raises(BadInput, match="2 steps"):
        main(arguments)
