"""Fill a feature store ahead of training, or import features made elsewhere.

python -m stepcot_jax.features --config=NAME --workdir=DIR [--encoder=transformers:ID] [--config.a.b=value]
    [--engine=ray --ray_workers=N]
python -m stepcot_jax.features import FILE --root ROOT --store DIR [--ids IDS]
"""

import argparse
import pathlib
import sys

from absl import app, flags, logging

from stepcot_jax.host.addresses import is_address, local_path, output_path, refuse_address
from stepcot_jax.host.errors import BadInput, run_tool
from stepcot_jax.host.files import make_workdir
from stepcot_jax.settings.flags import define_flags, parse
from stepcot_jax.settings.run_settings import make_settings


def fill(arguments: list[str]) -> None:
    """Encode every image and prompt of a config that has no stored feature."""

    def run() -> None:
        if len(arguments) > 1:
            raise BadInput(f"{arguments[1]}: unexpected argument; expected only flags, or `import FILE ...`")
        if not flags.FLAGS.workdir:
            raise BadInput("--workdir is required (a writable folder)")
        refuse_address(flags.FLAGS.workdir, "--workdir", is_output=True)
        config, workdir = flags.FLAGS.config, pathlib.Path(flags.FLAGS.workdir)
        if flags.FLAGS.encoder:
            config.image_encoder.name, config.image_encoder.weights = "pretrained", flags.FLAGS.encoder
        settings = make_settings(config)
        if not settings.image_encoder.is_frozen or not settings.features.store:
            raise BadInput(
                "a frozen encoder with stored features is required; got "
                f"config.image_encoder.name={settings.image_encoder.name!r} with "
                f"config.features.store={settings.features.store}"
            )
        # Imported here: jax takes seconds, too long for `--help` and a wrong flag.
        from stepcot_jax.data.dataset import write_account
        from stepcot_jax.features.inputs import load_inputs
        from stepcot_jax.host.ray_blocks import Cluster
        from stepcot_jax.host.terminal import Terminal

        given = flags.FLAGS
        cluster = None
        if given.engine == "ray":
            if is_address(settings.features.folder):
                found = f"config.features.folder={settings.features.folder!r}"
                raise BadInput(f"--engine=ray: {found} is on a store; expected a folder that the workers share")
            cluster = Cluster(given.ray_address, given.ray_workers, given.ray_cpus, given.ray_gpus)

        logging.set_verbosity(logging.WARNING)
        make_workdir(workdir)
        terminal = Terminal()
        account = write_account(load_inputs(settings, workdir, terminal, cluster=cluster).dataset, workdir)
        if account:
            terminal.say(account)

    run_tool(run)


def main(arguments: list[str]) -> None:
    """Import features for the cases of a folder: the command `import`."""
    parser = argparse.ArgumentParser(
        prog="python -m stepcot_jax.features import", description="Import features made elsewhere."
    )
    path = local_path
    parser.add_argument("file", type=path, metavar="FILE", help=".npz (features, ids) or .npy [case, width]")
    parser.add_argument("--ids", type=path, help=".txt, .csv or .json with the image path of each row")
    parser.add_argument("--root", type=path, required=True, help="folder of the cases")
    parser.add_argument("--store", type=output_path, required=True, metavar="DIR", help="folder for the features")
    parser.add_argument("--layout", default="auto", help="of the folder, see docs/sources.md; detected by default")
    parser.add_argument("--step-names", nargs="+", default=(), metavar="NAME", help="default: the published seven")
    parser.add_argument("--on-bad-record", choices=("stop", "skip"), default="stop", help="default stop")
    options = parser.parse_args(arguments)
    from stepcot_jax.data.records.records import PUBLISHED_STEP_NAMES
    from stepcot_jax.data.sources.layouts import read_source
    from stepcot_jax.features.importing import import_features

    # The images are not needed, and may be elsewhere.
    collection = read_source(
        options.root,
        layout=options.layout,
        step_names=tuple(options.step_names) or PUBLISHED_STEP_NAMES,
        on_bad_record=options.on_bad_record,
        require_images=False,
    )
    counts = import_features(options.file, options.ids, collection.cases, options.store)
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
