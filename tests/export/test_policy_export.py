from policies.policy_workdir import make_policy_workdir
from refusals import refuse

from stepcot_jax.reading.image_reader import load
from stepcot_jax.tools.export import main


def test_the_command_says_what_reads_a_policy(tmp_path):
    workdir = tmp_path / "run"
    make_policy_workdir(workdir)
    flags = [f"--checkpoint={workdir}", f"--out={tmp_path / 'out'}"]
    refuse(r"a policy of this package is not exported; sc\.load\('.*run'\) reads its run", main, flags)
    refuse("of a policy, to which --model does not apply", main, [*flags, "--model=teacher"])
    (workdir / "export.json").write_text("{}")
    refuse("an export; a policy is read from the workdir of its run", load, workdir)
