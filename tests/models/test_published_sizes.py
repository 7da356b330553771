import jax
import jax.numpy as jnp
import pytest

from stepcot_jax.models.student import Student
from stepcot_jax.models.teacher import Teacher
from stepcot_jax.systems.networks import Networks, init_params
from stepcot_jax.training.state import count_parameters

ANSWERS = (4, 4, 6, 7, 5, 7, 9)


@pytest.fixture(scope="module")
def shapes():
    networks = Networks(teacher=Teacher(answers_per_step=ANSWERS), student=Student(answers_per_step=ANSWERS))

    def init():
        batch = {"image_features": jnp.zeros((1, 512))}
        return init_params(networks, key=jax.random.key(0), batch=batch, text_features=jnp.zeros((7, 768)))

    return jax.eval_shape(init)


def test_teacher_trains_the_published_number(shapes):
    assert count_parameters(shapes["teacher"]) == 22_904_874


def test_student_trains_the_published_number(shapes):
    assert count_parameters(shapes["student"]) == 285_226
