"""From reports to chains: annotators that read a report, the checks of what they answer, and how far they agree."""
