"""What each `config.job` trains, in one table."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Job:
    """One `config.job`.

    Attributes:
      names: networks, or phases of a policy, whose best weights are kept; the default one last.
      epochs: settings with the epochs of its phases, in order.
      parts: parameters that another run's `start.checkpoint` copies; () for none.
      is_policy: whether it trains a policy on reasoning records; else it reads chains.
      reads_steps: whether its networks answer every step for an image.
    """

    name: str
    names: tuple[str, ...]
    epochs: tuple[str, ...]
    parts: tuple[str, ...] = ()
    is_policy: bool = False
    reads_steps: bool = False

    @property
    def files(self) -> tuple[str, ...]:
        """Files of a finished run that tables read besides report.json."""
        if self.is_policy:
            return ("records/test.jsonl", self.replies)
        return ("predictions/val.npz", "predictions/test.npz")

    @property
    def replies(self) -> str:
        """File with a policy's replies to the test questions."""
        return f"replies/{self.names[-1]}_test.jsonl"

    def __str__(self) -> str:
        return self.name


_TEACHER = ("teacher", "image_encoder")

JOBS = {
    job.name: job
    for job in (
        Job("teacher", ("teacher",), ("training.teacher_job_epochs",), _TEACHER, reads_steps=True),
        Job(
            "distill",
            ("teacher", "student"),
            ("training.teacher_epochs", "training.joint_epochs"),
            (*_TEACHER, "student", "teacher_projection", "student_projection"),
            reads_steps=True,
        ),
        Job(
            "chain_grpo",
            ("teacher",),
            ("training.teacher_job_epochs", "grpo.epochs"),
            _TEACHER,
            reads_steps=True,
        ),
        Job("baseline", ("baseline",), ("baseline.epochs",)),
        Job("sft", ("sft",), ("sft.epochs",), is_policy=True),
        Job("grpo", ("grpo",), ("sft.epochs", "grpo.epochs"), is_policy=True),
        Job("own", ("own",), ()),
    )
}
