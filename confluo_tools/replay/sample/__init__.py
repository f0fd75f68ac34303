"""confluo-replay sample: times of records as runs at even steps, and back."""
