"""Put a large vision-language model through the steps, one more verifiable constraint at a time (paper: 4.2)."""
