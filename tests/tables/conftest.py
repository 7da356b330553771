import jax
import pytest
from run.small_run import LinearEncoder, share_programs

from stepcot_jax.tools.tables import cell_networks


@pytest.fixture(scope="module")
def small_networks():
    """Cells have a linear encoder, and programs that are compiled once."""
    with pytest.MonkeyPatch.context() as patch, jax.numpy_dtype_promotion("standard"):
        share_programs(patch)
        patch.setattr(cell_networks, "make_resnet", lambda name: LinearEncoder())
        patch.setattr(jax, "clear_caches", lambda: None)
        yield
