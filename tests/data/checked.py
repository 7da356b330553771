"""What `stepcot data check` finds in a folder, what a reader sets aside, and the dataset that a run loads."""

from refusals import assert_says, refuse

from configs import base
from stepcot_jax.data.check import CheckOptions, check_root
from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.run.loading import load_dataset
from stepcot_jax.run.settings import make_settings


def check(root, **options):
    return check_root(root, CheckOptions(**options), terminal=Terminal(silent=True))


def set_aside_one(read, root, record, *parts, **options):
    """Assert that a bad record stops the reading or is set aside alone, with a reason that begins with the first part.

    Return the other cases and the line in which the reading stops.
    """
    collection = read(root, on_bad_record="skip", **options)
    (aside,), said = collection.set_aside, refuse("", read, root, **options)
    assert (aside.record, aside.reason.startswith(parts[0])) == (record, True)
    assert_says(aside.reason, *parts)
    assert_says(said, aside.reason)
    return collection.cases, said


def load(root, *, require_images=True, on_bad_record="stop"):
    config = base.get_config()
    config.data.source, config.data.root, config.data.on_bad_record = "folder", str(root), on_bad_record
    return load_dataset(make_settings(config), preprocessing=Preprocessing(size=16), require_images=require_images)
