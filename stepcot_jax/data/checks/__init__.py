"""What `data check` reports about a data root."""
