"""One of two test processes: a tree that is divided over both, gathered on the first.

python gathering_processes.py PORT PROCESS
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))


def main(port, process):
    from stepcot_jax.training.processes import gather_on_first, join_processes

    join_processes(coordinator=f"localhost:{port}", num_processes=2, process_id=int(process))
    import jax
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.make_mesh((4,), ("data",))
    whole = np.arange(12, dtype=np.float32).reshape(4, 3)

    def place(spec):
        return jax.make_array_from_callback(whole.shape, NamedSharding(mesh, spec), lambda index: whole[index])

    tree = {"divided": place(PartitionSpec("data")), "same": place(PartitionSpec()), "own": np.float32(3)}
    found = gather_on_first(tree)
    if process == "1":
        assert found is None
        return
    np.testing.assert_array_equal(found["divided"], whole)
    np.testing.assert_array_equal(found["same"], whole)
    assert found["own"] == 3
    assert not any(isinstance(leaf, jax.Array) for leaf in found.values())


if __name__ == "__main__":
    main(*sys.argv[1:])
