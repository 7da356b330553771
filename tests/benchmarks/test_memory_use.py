"""What a teacher does with its memory: the table against the equations written out, and which answers are given."""

import itertools

import jax
import numpy as np
import pytest
from oracles import reference_numpy as oracle
from trained_workdir import BEST, TINY, make_text, make_trained_workdir

from benchmarks import memory_use
from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.data.batches import evaluation_batches, iterate
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.run import inputs
from stepcot_jax.tools.tables import cell_networks
from stepcot_jax.training.checkpoints import restore_params

ANSWERS = np.array(DEFAULT_CHAIN.answers_per_step)
FACTORS = {"conclusion": 30, "attention_0": 0.25}


def with_a_memory(params):
    """Small biases and a loud write-back: with plain random weights hardly an answer reaches a later step."""

    def turn(path, leaf):
        names = [part.key for part in path]
        if names[-1] in ("bias", "scale"):
            return np.full_like(leaf, names[-1] == "scale") + leaf / 10
        if names == ["graph_attention", "residual_0", "kernel"]:
            return 2 * np.eye(*leaf.shape, dtype=np.float32)
        return leaf * next((factor for name, factor in FACTORS.items() if name in names), 1)

    return {**params, "teacher": jax.tree_util.tree_map_with_path(turn, params["teacher"])}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A workdir of random weights, its settings and its teacher's parameters."""
    folder = tmp_path_factory.mktemp("memory") / "run"
    settings, params = make_trained_workdir(folder)
    with pytest.MonkeyPatch.context() as patch, jax.numpy_dtype_promotion("standard"):
        for module in (inputs, cell_networks):
            patch.setattr(module, "make_resnet", lambda name: TINY)
        patch.setattr(cell_networks, "restore_params", lambda *args: with_a_memory(restore_params(*args)))
        yield folder, settings, with_a_memory(jax.device_get(params[BEST["teacher"]]))


@pytest.fixture(scope="module")
def cases(run):
    """Image features and labels of the test split, a case at a time."""
    folder, settings, params = run
    found = inputs.load_inputs(settings, folder, Terminal(silent=True))
    batches = list(iterate(evaluation_batches(found.dataset, "test", batch_size=1), num_threads=1))
    encode = jax.jit(lambda images: TINY.apply({"params": params["image_encoder"]}, images))
    features = [np.asarray(encode(found.prepare(batch)["images"]))[0] for batch in batches]
    return np.stack(features), np.stack([np.asarray(batch["labels"])[0] for batch in batches])


@pytest.fixture(scope="module")
def expected(run, cases):
    """Logits by what is given; nodes [case, step, node, width] before and after every pass; the memory written."""
    _, settings, params = run
    teacher, (features, labels) = oracle.as_float64(params["teacher"]), cases
    text = make_text(settings).astype(np.float64)
    passes, stack = [], oracle.graph_attention_stack

    def record(nodes, *args, **kwargs):
        result = stack(nodes, *args, **kwargs)
        passes.append((np.array(nodes), np.array(result[0])))
        return result

    answers = memory_use.make_answers(labels, DEFAULT_CHAIN, seed=3)
    logits = {name: oracle.teacher(teacher, features, text, given=given)["logits"] for name, given in answers.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(oracle, "graph_attention_stack", record)
        memory = oracle.teacher(teacher, features, text)["memory"]
    nodes = np.array(passes).reshape(len(labels), DEFAULT_CHAIN.num_steps, 2, *passes[0][0].shape)
    return logits, nodes[:, :, 0], nodes[:, :, 1], memory


def cosine(nodes):
    """Pair by pair, of the nodes [case, node, width] of every case."""
    found = []
    for one, other in itertools.combinations(np.moveaxis(nodes, 1, 0), 2):
        norms = np.sqrt((one**2).sum(axis=1) * (other**2).sum(axis=1))
        found.append((one * other).sum(axis=1) / norms)
    return np.mean(found)


def share(memory):
    return np.sqrt(memory.var(axis=0).sum() / (memory**2).sum(axis=1).mean())


@pytest.mark.slow
def test_the_table_is_what_the_equations_give(run, cases, expected, capsys):
    memory_use.main([str(run[0]), "--seed=3"])
    printed = capsys.readouterr().out
    logits, before, after, memory = expected
    labels = cases[1]
    assert printed.startswith(f"{len(labels)} cases of the split 'test', random answers of seed 3\n")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in printed.splitlines() if line[:1] == "|"]
    assert [row[0] for row in rows[2:]] == [step.name for step in DEFAULT_CHAIN.steps]
    assert {len(row) for row in rows} == {10}
    for place, row in enumerate(rows[2:]):
        found = [float(cell) for cell in row[1:]]
        right = [np.mean(of[place].argmax(axis=1) == labels[:, place]) for of in logits.values()]
        assert found[:4] == pytest.approx(100 * np.array(right), abs=0.051)
        own, random = (
            np.array([oracle.softmax(case) for case in logits[name][place]])
            for name in (memory_use.OWN, memory_use.RANDOM)
        )
        assert found[4] == pytest.approx(100 * np.abs(own - random).max(), abs=2e-3)
        assert found[5:7] == pytest.approx([cosine(before[:, place]), cosine(after[:, place])], abs=2e-4)
        shares = [share(after[:, place, -1]), share(memory[:, place])]
        assert found[7:] == pytest.approx(100 * np.array(shares), abs=0.02)


def test_these_weights_use_their_memory(expected):
    """Else the table could not tell one kind of answers from another."""
    own, random = (expected[0][name][-1] for name in (memory_use.OWN, memory_use.RANDOM))
    assert np.abs(own - random).max() > 0.1
    assert share(expected[3][:, 0]) > 0.01
