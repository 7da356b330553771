"""Reads the answers of an output folder as a test sees them, whatever a kill left."""

import contextlib
import json
import sqlite3


def read_rows(out):
    """Identity and entry of each attempt, in order."""
    path = out / "ledger" / "answers.sqlite"
    if not path.exists():
        return []
    with contextlib.closing(sqlite3.connect(path)) as file:
        if not file.execute("SELECT 1 FROM sqlite_master WHERE name = 'answers'").fetchall():
            return []  # killed before the tables were there
        query = "SELECT fields, entry FROM answers JOIN identities ON digest = ledger ORDER BY id"
        return [(json.loads(fields), json.loads(entry)) for fields, entry in file.execute(query)]


def read_entries(out, task=None):
    return [entry for fields, entry in read_rows(out) if task in (None, fields["task"])]
