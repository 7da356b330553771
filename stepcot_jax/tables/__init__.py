"""The paper's tables from resumable runs."""
