"""What `stepcot data check` finds in a folder, and the dataset that a run loads from it."""

from configs import base
from stepcot_jax.data.check import CheckOptions, check_root
from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.run.loading import load_dataset
from stepcot_jax.run.settings import make_settings


def check(root, **options):
    return check_root(root, CheckOptions(**options), terminal=Terminal(silent=True))


def load(root, *, require_images=True, on_bad_record="stop"):
    config = base.get_config()
    config.data.source, config.data.root, config.data.on_bad_record = "folder", str(root), on_bad_record
    return load_dataset(make_settings(config), preprocessing=Preprocessing(size=16), require_images=require_images)
