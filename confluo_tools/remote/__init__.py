"""Logs on other hosts: names, connections, the protocol (docs/protocol.md), both of its ends."""
