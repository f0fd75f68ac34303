"""Logs on other hosts: addresses, connections, the protocol (docs/protocol.md), its client and its server."""
