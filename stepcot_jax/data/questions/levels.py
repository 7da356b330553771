"""Cases of a chain as questions by levels; targets are replies as `stepcot constrain` asks for them (Figure 3)."""

import string
from pathlib import Path
from typing import Any

from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.reasoning.levels import DIAGNOSIS, Dialogue, Key, make_dialogue, name_step, position_of, write_thinking
from stepcot_jax.record import Record


def ask_level(case: Record, key: Key, chain: Chain, *, name: str) -> Record | None:
    """Return the question of a level about a case; None if an answer that the level asks for is not known.

    The prompt never shows the diagnosis, nor an answer that it asks for.
    """
    variant, level = key
    dialogue = make_dialogue(key, answers={}, truth=case.answers)
    asked = {position_of(field, chain.num_steps) for field in dialogue.fields}
    if any(case.answers[position] == NOT_ANNOTATED for position in asked):
        return None
    form = variant if variant != "constraints" else ""
    reasoning = case.reasoning or ("",) * chain.num_steps
    return ask_step(
        case,
        chain.num_steps,
        chain,
        name=":".join(filter(None, (name, f"level_{level}", form))),
        topic=" ".join(filter(None, (f"level {level}", form))),
        question=_write_question(chain, dialogue),
        thinking=write_thinking(chain, dialogue, answers=case.answers, reasoning=reasoning),
        facts={"level": str(level), "form": variant},
    )


def ask_step(case: Record, number: int, chain: Chain, *, name: str, **changes: Any) -> Record:
    """Return a step, counted from 1, as a question about a case."""
    step = chain.steps[number - 1]
    fields: dict[str, Any] = {
        "topic": step.name,
        "question": step.question,
        "thinking": case.reasoning[number - 1] if case.reasoning else "",
        "facts": {"step": str(number)},
    }
    return Record(
        id=f"{Path(case.image).stem}:{name}",
        image=case.image,
        patient=case.patient,
        origin=case.origin,
        split=case.split,
        kind="single",
        options=step.options,
        answer=string.ascii_uppercase[case.answers[number - 1]],
        modality="xray",
        **fields | changes,
    )


def _write_question(chain: Chain, dialogue: Dialogue) -> str:
    """Return what a level asks: known answers, the steps by name, and the diagnosis, whose choices follow."""
    lines = ["Read this radiograph" + (" step by step, then say the diagnosis." if dialogue.asked else ".")]
    for position, label in dialogue.given:
        step = chain.steps[position]
        lines.append(f"Known, {step.name}: {step.question} {step.lettered_options[label]}")
    for position in dialogue.asked:
        step = chain.steps[position]
        options = "; ".join(step.lettered_options)
        lines.append(f'"{name_step(position)}", {step.name}: {step.question} Options: {options}')
    return "\n".join([*lines, f'"{DIAGNOSIS}": {chain.steps[-1].question}'])
