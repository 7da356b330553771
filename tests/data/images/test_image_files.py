import hashlib
import os
import pickle

import pytest
from refusals import refuse

from stepcot_jax.data.images.image_decoding import most_bytes
from stepcot_jax.data.images.image_files import FolderFiles, ImageFiles, Selection, digest_content
from stepcot_jax.data.images.preprocessing import decode_image


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "root"
    (root / "images").mkdir(parents=True)
    for name in "abc":
        (root / "images" / f"{name}.png").write_bytes(name.encode() * 10)
    (tmp_path / "secret.png").write_bytes(b"secret")
    return root


def files(root, *paths, max_bytes=100):
    return FolderFiles(root, paths, max_bytes)


def test_reads_by_number_also_as_a_copy_or_a_selection(root):
    images = files(root, "images/b.png", "images/a.png")
    assert isinstance(images, ImageFiles)
    copy = pickle.loads(pickle.dumps(images))  # noqa: S301
    assert [each.read(0) for each in (images, copy)] == [b"b" * 10] * 2
    chosen = Selection(images, [1, 0])
    assert (chosen.read(0), chosen.name(0)) == (b"a" * 10, str(root / "images/a.png"))
    assert digest_content(chosen, 0) == hashlib.sha256(b"a" * 10).hexdigest()


@pytest.mark.parametrize("path", ["../secret.png", "/etc/hostname", "images/../../secret.png", ""])
def test_refuses_paths_that_leave_the_root(root, path):
    refuse("must be a path below the data root", lambda: files(root, path).read(0))


@pytest.mark.parametrize("linked", ["images/a.png", "images"])
def test_refuses_links_that_lead_out_even_if_they_are_made_after_the_first_look(root, tmp_path, linked):
    images = files(root, "images/a.png")
    assert images.read(0)
    (root / linked).rename(tmp_path / "elsewhere")
    (root / linked).symlink_to(tmp_path / "elsewhere")
    refuse(r"images/a\.png: .* is a link out of the data root", images.read, 0)


def test_refuses_what_is_missing_no_file_or_large_before_reading_it(root):
    os.mkfifo(root / "pipe.png")
    for path, found in (("none.png", "does not exist"), ("images", "is not a file"), ("pipe.png", "is not a file")):
        assert str(root / path) in refuse(found, files(root, path).read, 0)
    with (root / "images/a.png").open("wb") as file:
        file.truncate(10**12)  # a hole: nobody could read it whole
    refuse(r"images/a\.png: 1000000000000 bytes, more than 100", lambda: files(root, "images/a.png").read(0))
    message = refuse("1000000000000 bytes, more than", decode_image, root / "images/a.png", max_pixels=1000)
    assert str(most_bytes(1000)) in message
