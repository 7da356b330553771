"""The rules annotator: tables of words that turn a report into a chain, offline and deterministically."""
