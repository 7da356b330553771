"""Work of compiled programs against what the programs compute."""

import jax
import jax.numpy as jnp
import pytest

from benchmarks.work import read_work

WIDTH, ROWS, LAYERS = 64, 8, 5


def shape(*axes, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(axes, dtype)


def test_products_in_loops_count_times_their_length_and_read_one_layer_a_turn():
    def layers(rows, weights):
        return jax.lax.scan(lambda rows, weight: (jnp.tanh(rows @ weight), None), rows, weights)[0]

    program = jax.jit(layers).lower(shape(ROWS, WIDTH), shape(LAYERS, WIDTH, WIDTH)).compile().as_text()
    work = read_work(program)
    assert work.flops == {"f32": 2 * ROWS * WIDTH**2 * LAYERS}
    weights = 4 * LAYERS * WIDTH**2
    assert weights < work.num_bytes < 4 * weights  # one copy of a layer, and the product's reading of it
    assert work.num_kernels >= LAYERS


@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions_and_their_gradients_are_counted_as_xla_counts_them(stride):
    def convolve(images, kernel):
        how = {"window_strides": (stride, stride), "padding": "SAME", "dimension_numbers": ("NHWC", "HWIO", "NHWC")}
        return jax.lax.conv_general_dilated(images, kernel, **how)

    images, kernel = shape(2, 9, 8, 4), shape(3, 3, 4, 6)
    outputs = jax.eval_shape(convolve, images, kernel)
    backward = [lambda *all, place=place: jax.vjp(convolve, *all[:2])[1](all[2])[place] for place in (0, 1)]
    for run, given in ((convolve, (images, kernel)), *((run, (images, kernel, outputs)) for run in backward)):
        lowered = jax.jit(run).lower(*given)
        counted = read_work(lowered.compiler_ir("hlo").as_hlo_text()).flops["f32"]
        assert counted == pytest.approx(lowered.cost_analysis()["flops"], rel=1e-3)


def test_a_product_of_a_library_counts_without_its_workspace():
    program = """HloModule jit_f
ENTRY %main (left: f32[8,64], right: f32[64,32]) -> (f32[8,32], s8[4194304]) {
  %left = f32[8,64]{1,0} parameter(0)
  %right = f32[64,32]{1,0} parameter(1)
  ROOT %product = (f32[8,32]{1,0}, s8[4194304]{0}) custom-call(%left, %right), custom_call_target="__cublas$lt$matmul", backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}
}
"""  # noqa: E501
    work = read_work(program)
    assert work.flops == {"f32": 2 * 8 * 64 * 32}
    assert (work.num_bytes, work.num_kernels) == (4 * (8 * 64 + 64 * 32 + 8 * 32), 1)
