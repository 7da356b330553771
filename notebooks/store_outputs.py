"""Run notebooks from the first cell to the last and store their outputs in them.

    .venv/bin/python notebooks/store_outputs.py [NAME...] [--folder FOLDER]

Without names, all in the order in which they need each other's runs. They write into FOLDER/runs, a temporary folder by
default; a finished run there is not repeated.
"""

import argparse
import json
import os
import pathlib
import tempfile

import nbclient
import nbformat

HERE = pathlib.Path(__file__).parent
NAMES = ("quickstart", "reading_a_chain", "your_own_data", "anatomy", "verifiable_rewards")


def store_outputs(name: str, folder: pathlib.Path) -> None:
    """Run one notebook with `folder` as its working folder, and write it with its outputs."""
    path = HERE / f"{name}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook,
        timeout=3600,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,  # a line of progress that was written over is stored once
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute()
    notebook["metadata"]["language_info"] = {"name": "python"}
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB", flush=True)


def main() -> None:
    """Store the outputs of the notebooks that the command line names."""
    parser = argparse.ArgumentParser(description="Run notebooks and store their outputs in them.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; default: all")
    parser.add_argument("--folder", type=pathlib.Path, help="where they write runs/; default: a temporary folder")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in NAMES]
    if unknown:
        parser.error(f"{unknown[0]!r} is not one of {', '.join(NAMES)}")
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # XLA's alarm about slow compilation is of the machine
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or pathlib.Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in options.names or NAMES:
            store_outputs(name, folder.resolve())


if __name__ == "__main__":
    main()
