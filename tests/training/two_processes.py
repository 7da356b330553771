"""One of two test processes: a joint update on its rows of the batch.

python two_processes.py step PORT PROCESS TRANSFORM OUT
"""

import pathlib
import sys

here = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(here), str(here.parent)]


def main(port, process, transform, out):
    from stepcot_jax.training.processes import any_process, is_first, join_processes

    join_processes(coordinator=f"localhost:{port}", num_processes=2, process_id=int(process))
    import jax
    import numpy as np
    from training import parallel_step

    assert jax.process_count() == 2
    assert jax.device_count() == 8
    assert is_first() == (process == "0")
    assert any_process(process == "1")
    assert not any_process(False)
    gradients, metrics, _ = parallel_step.run(transform=transform, num_devices=8)
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves((gradients, metrics))]
    np.savez(f"{out}.{process}.npz", *leaves)


if __name__ == "__main__":
    main(*sys.argv[1:])
