"""Tables of sentences and what is read in them."""


def read_table(text):
    """Return (name, sentence) of lines "NAME: SENTENCE | SENTENCE ..."."""
    lines = (line.partition(": ") for line in text.strip().splitlines())
    return [(name, sentence) for name, _, sentences in lines for sentence in sentences.split(" | ")]
