"""A run of fine-tuning and GRPO that takes seconds: 30 phantoms, a policy of one narrow layer, few updates."""

import dataclasses
import functools
import json

import jax
from policies.policy_workdir import small_settings as policy_settings
from run.small_run import last_params, read_log, undot
from sections import section

from stepcot_jax.run.policy_task import PolicyTask
from stepcot_jax.run.training_run import Run
from stepcot_jax.systems.grpo import Rollouts

SHORT = {
    **section("sft", epochs=2, batch_size=16, learning_rate=1e-2),
    **section("grpo", epochs=2, batch_size=4, group_size=3, updates_per_epoch=3, num_updates=2),
    **section("evaluation", num_resamples=20, batch_size=32),
    **section("training", log_every=2, checkpoint_minutes=1e-9),
    "policy.num_merges": 300,
    "vqa.num_validated": 6,
    "parallel.num_devices": 1,
    "rewards.functions": ("answer=1", "grounding=1", "well_formed=1"),
}
"""A checkpoint at every log entry; the suite has eight virtual devices."""


def small_settings(**changes):
    """Settings of the run; changes by full name, with `__` for dots."""
    return policy_settings(**{**SHORT, **undot(changes)})


def reward_tokens(rollouts, replies):
    """Rewards of any reply, since a policy of few updates writes none that is well formed; NaN for some."""
    del rollouts
    sums = [(int(tokens.sum()), len(record.id)) for record, tokens in replies]
    totals = [float("nan") if tokens % 11 == 0 else float((tokens + length) % 5) / 4 for tokens, length in sums]
    return dict.fromkeys(("answer", "grounding", "total"), totals)


# Tracing takes most of a small run's time, and tests repeat runs; kill_harness.py does not use this.
_INIT, _COMPILE = Run._init, Run._compile
_PREDICT, _MAKE_SAMPLE = PolicyTask.predict.func, Rollouts.__post_init__
_PROGRAMS = {}


def _once(name, settings, make):
    key = (name, settings)
    if key not in _PROGRAMS:
        _PROGRAMS[key] = make()
    return _PROGRAMS[key]


def small_run(workdir, monkeypatch, **changes):
    """A run with `reward_tokens`; its programs are traced once per process for equal settings and batches."""
    share_programs(monkeypatch)
    monkeypatch.setattr(Rollouts, "reward_all", reward_tokens)
    return Run(small_settings(**changes), workdir)


def share_programs(monkeypatch):
    """Let runs with equal settings have the programs that were traced and compiled for the first of them."""

    def make_samplers(rollouts):
        _MAKE_SAMPLE(rollouts)
        sizes = f"{rollouts.policy} {rollouts.settings} {rollouts.longest} {rollouts.tokenizer.stop}"
        rollouts._sample = _once("sample", sizes, lambda: rollouts._sample)
        if (checks := rollouts.self_check) is not None:
            sizes += f" {checks.settings} {checks.longest} {checks.longest_check}"
            for name in ("_samplers", "_plans", "_embed"):
                setattr(checks, name, _once(name, sizes, functools.partial(getattr, checks, name)))

    def compile_update(run, phase, state, batch):
        shapes = {name: array.shape for name, array in batch.items()}
        numbers = (run.system.sft_updates, run.system.grpo_updates)  # of a schedule
        name = f"{phase.name} {shapes} {numbers}"
        return _once(name, key_of(run.settings), lambda: _COMPILE(run, phase, state, batch))

    monkeypatch.setattr(Rollouts, "__post_init__", make_samplers)
    monkeypatch.setattr(Run, "_compile", compile_update)
    init = property(lambda run: _once("init", key_of(run.settings), lambda: lambda: _INIT(run)))
    predict = property(lambda task: _once("predict", key_of(task.settings), lambda: _PREDICT(task)))
    monkeypatch.setattr(Run, "_init", init)
    monkeypatch.setattr(PolicyTask, "predict", predict)


def key_of(settings):
    """Settings without the epochs of GRPO, whose rate is constant."""
    assert settings.grpo.schedule == "constant"
    return repr(dataclasses.replace(settings, grpo=dataclasses.replace(settings.grpo, epochs=1)))


def read_results(workdir):
    """Everything that a finished run leaves but times: bytes of parameters by update, log, files, and the report."""
    last = [leaf.tobytes() for leaf in jax.tree.leaves(last_params(workdir))]
    report = json.loads((workdir / "report.json").read_text())
    del report["wall_seconds"]
    files = [workdir / name for name in ("policy.json", "vocabulary.json", "statistics.json")]
    for part in ("replies", "records", "examples"):
        files += sorted((workdir / part).iterdir())
    content = {path.relative_to(workdir).as_posix(): path.read_bytes() for path in files}
    # A log entry may say NaN, which is unlike itself.
    return {"last": last, "log": json.dumps(read_log(workdir)), "files": content, "report": report}
