"""The engine `ray`: map blocks of rows over the processes of a Ray cluster, with Ray Data."""

import dataclasses
import logging
import math
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from stepcot_jax.host.errors import BadInput, RunStopped
from stepcot_jax.host.text import install_extra, one_line


@dataclasses.dataclass(frozen=True)
class RayCluster:
    """The worker processes of a run; a call maps blocks, see `host.extras.MapBlocks`."""

    address: str = ""  # "": RAY_ADDRESS, or a new local cluster
    num_workers: int = 2
    num_cpus: float = 1.0  # logical cores of a worker
    num_gpus: float = 0.0  # accelerators of a worker; with 0, Ray hides all of them from it

    def __post_init__(self) -> None:
        if self.num_workers < 1:
            raise BadInput(f"the number of Ray workers must be at least 1; got {self.num_workers}")
        if not (0 <= self.num_cpus < math.inf and 0 <= self.num_gpus < math.inf):
            raise BadInput(f"cores and GPUs of a Ray worker must be at least 0; got {self.num_cpus}, {self.num_gpus}")

    def __call__(self, blocks: Sequence[Any], make: Callable[[], Callable[[Any], Any]]) -> Iterator[tuple[int, Any]]:
        """Yield the position and the result of each block, as they are finished; a worker that dies is replaced."""
        if not blocks:
            return
        ray = _start(self)
        shared = ray.put(ray.cloudpickle.dumps((make, os.getcwd())))  # noqa: PTH109
        rows = [{"position": position, "block": pickle.dumps(block)} for position, block in enumerate(blocks)]
        # Each block of work is one of Ray's blocks, so that it is assigned alone.
        results = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            _Worker,
            batch_size=1,
            batch_format="numpy",
            fn_constructor_args=(shared,),
            compute=ray.data.ActorPoolStrategy(size=min(self.num_workers, len(rows)), max_tasks_in_flight_per_actor=2),
            num_cpus=self.num_cpus,
            num_gpus=self.num_gpus,
        )
        try:
            for row in results.iter_rows():
                result = pickle.loads(row["result"])  # noqa: S301, from our own workers
                if isinstance(result, BadInput):
                    raise result
                yield int(row["position"]), result
        except ray.exceptions.RayError as error:
            why = str(error).strip().rpartition("\n")[2][:300]
            raise RunStopped(f"a Ray worker failed ({why}); finished blocks are kept, rerun the command") from error


class _Worker:
    def __init__(self, shared: Any) -> None:
        import ray

        make, folder = pickle.loads(ray.get(shared))  # noqa: S301, from our own driver
        os.chdir(folder)  # relative paths are those of the driver
        self._work, self._problem = None, ""
        try:
            self._work = make()
        except BadInput as error:  # an exception would be retried, and wrapped
            self._problem = str(error)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        results = []
        for block in batch["block"]:
            try:
                if self._work is None:
                    raise BadInput(self._problem)
                results.append(pickle.dumps(self._work(pickle.loads(block))))  # noqa: S301
            except BadInput as error:
                results.append(pickle.dumps(BadInput(str(error))))
        return {"position": batch["position"], "result": results}


def _start(cluster: RayCluster) -> Any:
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise BadInput(f"--engine=ray requires {error.name}: {install_extra('ray')}") from None
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    if not ray.is_initialized():
        is_local = not cluster.address and not os.environ.get("RAY_ADDRESS")
        # Logical cores of a new local cluster: one more than the workers use, for Ray Data's own tasks.
        num_cpus = math.ceil(cluster.num_workers * cluster.num_cpus) + 1 if is_local else None
        try:
            ray.init(
                address=cluster.address or ("local" if is_local else None),
                num_cpus=num_cpus,
                include_dashboard=False if is_local else None,
                logging_level=logging.WARNING,
                log_to_driver=False,
            )
        except Exception as error:  # Ray raises plain exceptions
            where = "on this machine" if is_local else cluster.address or "of RAY_ADDRESS"
            raise BadInput(f"the Ray cluster {where} cannot be used: {one_line(error)}") from None
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    resources = ray.cluster_resources()
    for name, share in (("CPU", cluster.num_cpus), ("GPU", cluster.num_gpus)):
        if share * cluster.num_workers > resources.get(name, 0):
            raise BadInput(
                f"{cluster.num_workers} Ray workers of {share:g} {name} do not fit into the cluster, which has "
                f"{resources.get(name, 0):g}"
            )
    return ray
