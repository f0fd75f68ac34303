"""Kafka topics as inputs and outputs of records."""
