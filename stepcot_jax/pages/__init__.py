"""The parts of a run's report page: tables, drawn figures and cases, in one file that asks nothing of the network."""
