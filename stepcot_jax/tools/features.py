"""Fill a feature store ahead of training, or import features made elsewhere.

stepcot features --config=NAME --workdir=DIR|gs://BUCKET/FOLDER
    [--encoder=transformers:ID] [--config.a.b=value] [--engine=ray --ray_workers=N]
stepcot features import FILE --root ROOT --store DIR [--ids IDS]
"""

import argparse
import contextlib
import sys

from absl import app, flags, logging

from stepcot_jax.host.download import is_address
from stepcot_jax.host.errors import BadInput, run_tool
from stepcot_jax.run.settings import make_settings
from stepcot_jax.tools.options import ReadStepNames, add, define_flags, local_path, parse


def fill(arguments: list[str]) -> None:
    """Encode every image of a config that has no stored feature."""

    def run() -> None:
        if len(arguments) > 1:
            raise BadInput(f"{arguments[1]}: unexpected argument; expected only flags, or `import FILE ...`")
        if not flags.FLAGS.workdir:
            raise BadInput("--workdir is required (a writable folder)")
        config, address = flags.FLAGS.config, flags.FLAGS.workdir
        if flags.FLAGS.encoder:
            config.image_encoder.name, config.image_encoder.weights = "pretrained", flags.FLAGS.encoder
        if is_address(address) and not config.features.folder:
            config.features.folder = f"{address.rstrip('/')}/features"
        settings = make_settings(config)
        if settings.trains_policy:
            raise BadInput(
                f"config.job: {str(settings.trains)!r} is of a policy, whose run encodes the pictures of its records "
                "itself; expected a job that reads chains"
            )
        if not settings.image_encoder.is_frozen or not settings.features.store:
            found = f"config.image_encoder.name={settings.image_encoder.name!r}"
            found += f" with config.features.store={settings.features.store}"
            raise BadInput(f"a frozen encoder with stored features is required; got {found}")
        from stepcot_jax.data.dataset import write_account
        from stepcot_jax.host.extras import find_extra
        from stepcot_jax.host.terminal import Terminal
        from stepcot_jax.run.inputs import load_inputs
        from stepcot_jax.run.places import Place

        values, map_blocks = flags.FLAGS, None
        if values.engine != "local":
            make_engine = find_extra("engine", values.engine, packages="ray")
            resources = {"num_cpus": values.ray_cpus, "num_gpus": values.ray_gpus}
            map_blocks = make_engine(address=values.ray_address, num_workers=values.ray_workers, **resources)
        logging.set_verbosity(logging.WARNING)
        terminal = Terminal()
        workdir = Place(address, say=terminal.say)
        with workdir.hold() if workdir.is_remote else contextlib.nullcontext():
            dataset = load_inputs(settings, workdir.folder, terminal, map_blocks=map_blocks).dataset
            account = write_account(dataset, workdir.folder)
            workdir.finish()
        if account:
            terminal.say(account.replace(str(workdir.folder), workdir.name))
        if workdir.is_remote:
            terminal.say(f"next: train with --config.features.folder={settings.features.folder}")

    run_tool(run)


def main(arguments: list[str]) -> None:
    """Import features for the cases of a folder: the command `import`."""
    parser = argparse.ArgumentParser(
        prog="stepcot features import",
        description="Import features made elsewhere. FILE, IDS and ROOT may be on gs://.",
    )
    add(parser, "FILE", ".npz (features, ids) or .npy [case, width]")
    add(parser, "--ids IDS", ".txt, .csv or .json with the image path of each row")
    add(parser, "--root ROOT", "folder of the cases", required=True)
    add(parser, "--store DIR", "folder for the features", type=local_path, required=True)
    parser.add_argument("--layout", default="auto", help="of the folder, see docs/sources.md; detected by default")
    add(parser, "--step-names NAME", "default: the published seven", (), nargs="+", action=ReadStepNames)
    add(parser, "--on-bad-record", "default stop", "stop", choices=("stop", "skip"))
    options = parser.parse_args(arguments)
    from stepcot_jax.data.records.records import PUBLISHED_STEP_NAMES
    from stepcot_jax.data.sources.layouts import read_source
    from stepcot_jax.features.importing import import_features
    from stepcot_jax.host.download import find_path

    file = find_path(options.file, "FILE")
    ids = options.ids and find_path(options.ids, "--ids")
    root = find_path(options.root, "--root")

    # The images are not needed, and may be elsewhere.
    how = {"layout": options.layout, "on_bad_record": options.on_bad_record}
    names = tuple(options.step_names) or PUBLISHED_STEP_NAMES
    collection = read_source(root, step_names=names, require_images=False, **how)
    counts = import_features(file, ids, collection.cases, options.store)
    prompts = f" and {counts.prompts} prompts" if counts.prompts else ""
    print(f"features of {counts.images} images{prompts}, width {counts.width}, in {options.store}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["import"]:
        run_tool(lambda: main(sys.argv[2:]))
    define_flags()
    flags.DEFINE_string("encoder", None, "Folder, Hugging Face id, or transformers:ID (extra torch); frozen.")
    flags.DEFINE_enum("engine", "local", ["local", "ray"], "What encodes the images: this process, or a Ray cluster.")
    flags.DEFINE_string("ray_address", "", "Ray cluster; default RAY_ADDRESS, or else one on this machine.")
    flags.DEFINE_integer("ray_workers", 2, "Processes that encode; each loads the encoder once.")
    flags.DEFINE_float("ray_cpus", 1.0, "Logical cores of a worker.")
    flags.DEFINE_float("ray_gpus", 0.0, "Accelerators of a worker.")
    app.run(fill, flags_parser=parse)
