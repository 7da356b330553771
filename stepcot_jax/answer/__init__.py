"""The command that asks a trained policy about a radiograph."""
