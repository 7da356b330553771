"""Uncertainty-driven quality assurance: the annotator doubts its own chain, further models vote on it.

A chain is kept where the annotator trusts it and every voter calls it correct. Voters are asked one after the other,
and no further once one has not voted so: the outcome is settled, and every vote is paid for.
"""

import json
from collections.abc import Sequence

from stepcot_jax.annotate.annotation import NOT_TRUSTED, VOTED_DOWN, Annotation, CannotAnnotate, Report
from stepcot_jax.annotate.llm import Interviewer
from stepcot_jax.annotate.model_answers import read_choice, write_chain_answer
from stepcot_jax.annotate.prompt import TRUST, VOTES
from stepcot_jax.chain import Chain


class QualityAssurance:
    """Asks for trust and votes, as far as the run has it.

    Args:
      chain: the steps that were answered.
      doubter: the annotator with the trust prompt; None where it is not asked.
      voters: further models with the vote prompt.
    """

    def __init__(self, chain: Chain, *, doubter: Interviewer | None, voters: Sequence[Interviewer]) -> None:
        self._chain, self._doubter, self._voters = chain, doubter, tuple(voters)

    async def examine(self, report: Report, annotation: Annotation) -> tuple[tuple[str, str], ...]:
        """What was asked and answered, for the record's provenance.

        Raises:
          CannotAnnotate: the annotator does not trust its chain, or a voter does not call it correct.
          RequestFailed: a request was given up.
          RunStopped: the run has to stop.
          BadInput: an endpoint does not take the key, the address or the model.
        """
        said = []
        if self._doubter is not None:
            trust = await self._ask_trust(self._doubter, report, annotation)
            if trust != TRUST[0]:
                raise CannotAnnotate(NOT_TRUSTED, f"{self._doubter.endpoint.model}: {trust}")
            said.append(("trusts itself", trust))
        votes: list[str] = []
        for voter in self._voters:
            vote = await self._ask_vote(voter, report, annotation)
            votes.append(f"{voter.endpoint.model}: {vote}")
            if vote != VOTES[0]:
                raise CannotAnnotate(VOTED_DOWN, ", ".join(votes))
        if votes:
            said.append(("votes", ", ".join(votes)))
        return tuple(said)

    async def _ask_trust(self, doubter: Interviewer, report: Report, annotation: Annotation) -> str:
        answer = json.dumps(write_chain_answer(annotation, chain=self._chain), ensure_ascii=False)
        messages = [
            *doubter.prompt.messages({"report": report.text}),
            {"role": "assistant", "content": answer},
            {"role": "user", "content": doubter.prompt.follow_up},
        ]
        return (await doubter.ask(report, messages, lambda text: read_choice(text, field="trust", accepted=TRUST)))[0]

    async def _ask_vote(self, voter: Interviewer, report: Report, annotation: Annotation) -> str:
        data = {"report": report.text, "chain": write_chain_answer(annotation, chain=self._chain)}
        messages = voter.prompt.messages(data)
        return (await voter.ask(report, messages, lambda text: read_choice(text, field="vote", accepted=VOTES)))[0]
