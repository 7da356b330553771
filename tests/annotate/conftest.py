"""Every test of this room has a key for endpoints."""

import pytest


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-marker-0123456789")
