"""Language models as annotators and voters, behind a ledger of paid answers and a spending cap."""
