"""A trained policy's greedy replies to given records, such as perturbed ones."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from stepcot_jax.policies.policy_files import AnyTokenizer
from stepcot_jax.policies.records import lay_out_prompts
from stepcot_jax.policies.sampling import Sampling, generate, reply_in_batches, rollout_keys
from stepcot_jax.policies.tokenizers import split_pieces
from stepcot_jax.predict.trained_policy import TrainedPolicy
from stepcot_jax.reasoning.dialects import write_question
from stepcot_jax.reasoning.record import VqaRecord


def answer_records(
    trained: TrainedPolicy,
    records: Sequence[VqaRecord],
    load_images: Callable[[Sequence[int]], np.ndarray],
    *,
    leave_out_unknown: bool = False,
) -> list[str]:
    """Return greedy replies to records, in batches of `evaluation.batch_size`.

    Args:
      load_images: from places of records to their images, uint8 [case, size, size, 3], as `VqaDataset.load_images`.
      leave_out_unknown: leave pieces that a closed vocabulary does not have out of the prompts; see `leave_out`.
    """
    vqa, tokenizer = trained.settings.vqa, trained.tokenizer
    texts = [write_question(record, vqa.dialect, with_thinking=vqa.with_thinking) for record in records]
    if leave_out_unknown:
        texts = [leave_out(text, tokenizer)[0] for text in texts]
    prompts = [tokenizer.encode_prompt(text) for text in texts]
    # Perturbed questions may be longer than those of training; the prompt's padding takes no part in a reply.
    longest = max(trained.lengths.prompt_length, *map(len, prompts))
    sampling = Sampling(
        longest=trained.lengths.reply_length, stop=tokenizer.stop, more_stops=tokenizer.more_stops, greedy=True
    )

    def ask(places: Sequence[int]) -> np.ndarray:
        rows = lay_out_prompts([prompts[place] for place in places], longest, pad=tokenizer.pad)
        replies = generate(
            trained.network,
            trained.params,
            trained.see(load_images(places)),
            jnp.asarray(rows["prompts"]),
            jnp.asarray(rows["lengths"]),
            sampling=sampling,
            keys=rollout_keys(jax.random.key(0), first=0, number=len(places)),  # not used by greedy replies
        )
        return np.asarray(replies.tokens)

    size = min(trained.settings.evaluation.batch_size, len(records))
    return reply_in_batches(ask, len(records), batch_size=size, tokenizer=tokenizer)


def leave_out(text: str, tokenizer: AnyTokenizer) -> tuple[str, tuple[str, ...]]:
    """Return a prompt without the pieces that a closed vocabulary does not have, and those pieces.

    >>> from stepcot_jax.policies.tokenizers import Vocabulary
    >>> leave_out("Isn't there a mass?", Vocabulary.count(["Is there a mass?"], largest=3))
    (' there a mass?', ('Isn', "'", 't'))
    """
    if tokenizer.closed is None:
        return text, ()
    known, pieces = set(tokenizer.closed.base), split_pieces(text)
    unknown = tuple(piece for piece in pieces if piece not in known)
    return "".join(piece for piece in pieces if piece in known), unknown
