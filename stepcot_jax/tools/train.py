"""Train, distil and evaluate: what `stepcot train` and `python -m stepcot_jax.main` run."""

from absl import flags, logging

from stepcot_jax.host.errors import BadInput, end_process, run_tool
from stepcot_jax.run.settings import make_settings


def main(arguments: list[str]) -> None:
    """Run the job that the flags describe."""

    def run() -> None:
        if len(arguments) > 1:
            raise BadInput(f"{arguments[1]}: unexpected argument; expected only flags (--config=, --workdir=)")
        if not flags.FLAGS.workdir:
            raise BadInput("--workdir is required (a writable folder)")
        settings = make_settings(flags.FLAGS.config)
        from stepcot_jax.training.processes import is_first, join_processes

        join_processes(**{name: flags.FLAGS[name].value for name in ("coordinator", "num_processes", "process_id")})
        from stepcot_jax.run.training_run import Run

        logging.set_verbosity(logging.WARNING)  # Orbax and Grain log every file they touch
        run = Run(settings, flags.FLAGS.workdir)
        try:
            run.execute()
        except KeyboardInterrupt:
            raise KeyboardInterrupt(run.describe_resume()) from None
        if is_first() and not settings.trains_policy:
            from stepcot_jax.reading.image_reader import prepare_first_answer

            prepare_first_answer(run.workdir, say=run.terminal.say)
        run.say_next()

    run_tool(run, end=end_process)
