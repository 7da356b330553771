"""A tokenizer of a Qwen2.5-VL policy: prompts are turns of a chat with one image, replies are plain text."""

from collections.abc import Mapping, Sequence

from stepcot_jax.policies.qwen.qwen_template import IMAGE, IMAGE_TOKEN, TURN, WrittenTurn, refuse_control, write_turns
from stepcot_jax.policies.tokenizers import PretrainedTokenizer, Vocabulary, cut_at_stop


class ChatTokenizer:
    """Any tokenizer with the control tokens of Qwen's chats; `policies.tokenizers.Tokenizer` lists the methods.

    Args:
      stops: tokens that end a reply beside the one that ends a turn, such as those of generation_config.json.
    """

    def __init__(
        self,
        inner: Vocabulary | PretrainedTokenizer,
        control: Mapping[str, int],
        *,
        num_image_tokens: int,
        stops: Sequence[int] = (),
    ) -> None:
        self.inner, self.control, self.num_image_tokens = inner, dict(control), num_image_tokens
        self.num_words = max(inner.num_words, *(token + 1 for token in self.control.values()))
        self.pad, self.stop = inner.pad, self.control[TURN[1]]
        self.more_stops = tuple(token for token in stops if token != self.stop)
        self._of_chats = frozenset(self.control.values())

    @classmethod
    def around(cls, vocabulary: Vocabulary, *, num_image_tokens: int) -> "ChatTokenizer":
        """Return a closed vocabulary with control tokens after its words; its own stop token ends a turn."""
        others = (name for name in (*TURN, *IMAGE) if name != TURN[1])
        control = {name: vocabulary.num_words + place for place, name in enumerate(others)}
        return cls(vocabulary, {**control, TURN[1]: vocabulary.stop}, num_image_tokens=num_image_tokens)

    @property
    def closed(self) -> Vocabulary | None:
        """The closed vocabulary of texts; None if any text has tokens."""
        return self.inner.closed

    @property
    def image_token(self) -> int:
        """Token that stands for an image's vectors."""
        return self.control[IMAGE_TOKEN]

    def encode(self, text: str) -> list[int]:
        """Return a text's tokens."""
        return refuse_control(text, self.inner.encode(text) if text else [], self.control)

    def encode_prompt(self, text: str) -> list[int]:
        """Return the tokens of the user's turn with the image, and of the start of the reply."""
        tokens = write_turns([WrittenTurn("user", text, 1)], self.encode, self.control)
        place = tokens.index(self.image_token)
        return [*tokens[:place], *[self.image_token] * self.num_image_tokens, *tokens[place + 1 :]]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens up to the first stop, without control tokens."""
        return self.inner.decode([token for token in cut_at_stop(tokens, self) if token not in self._of_chats])
