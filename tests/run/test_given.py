import msgspec
import pytest
from refusals import refuse

import stepcot_jax as sc
from stepcot_jax.run.given import Given, check_readable, check_same_given, read_given, write_given
from stepcot_jax.systems.updates import AnswerSchedule

NAMES = {"system": "a.B", "networks": ("teacher",), "optimizers": ("student",), "features": ("prompts",)}
WHOLE = Given(parts={"p": 0.5}, rewards={"r": 1.0}, **NAMES)


@pytest.mark.parametrize("name", Given.__struct_fields__)
def test_a_run_goes_on_with_the_values_of_its_start_alone(tmp_path, name):
    other = msgspec.structs.replace(WHOLE, **{name: type(getattr(WHOLE, name))()})
    for before, now in ((WHOLE, other), (other, WHOLE)):
        write_given(tmp_path, before)
        assert read_given(tmp_path) == before
        check_same_given(tmp_path, before)
        refuse(f"{name}.*: the run started with", check_same_given, tmp_path, now)
    if name in ("system", "networks"):
        write_given(tmp_path, Given(**{name: getattr(WHOLE, name)}))
        refuse("trained by sc.fit with", check_readable, tmp_path)
    write_given(tmp_path, Given())
    check_readable(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_run_has_the_settings_that_its_values_say(tmp_path, monkeypatch):
    monkeypatch.setattr(sc.Run, "execute", lambda run: None)
    data = sc.load_dataset("quickstart", **{"phantom.num_cases": 60})
    student, schedule = sc.Student(data.chain.answers_per_step, width=8), AnswerSchedule(0.4, noise=0.1)
    encoder = sc.make_resnet("resnet18")
    system = sc.StepCoT(data.chain, student=student, image_encoder=encoder, joint_epochs=3, given=schedule)
    run = sc.fit(system, data, workdir=tmp_path, batch_size=8, seed=3, **{"parallel.num_devices": 1})
    found, trained = run.settings, run.settings.training
    assert (found.seed, found.student.width, found.image_encoder.name, trained.batch_size) == (3, 8, "resnet18", 8)
    assert (trained.joint_epochs, trained.given_answers, trained.given_rate) == (3, "random", 0.4)
    refuse("student.width: given by the system", sc.fit, system, data, workdir=tmp_path, **{"student.width": 8})
