"""confluo-tools: network records as a shared log, and Unix filters over it."""

__version__ = "0.1.0"
FORMAT_VERSION = 1  # of the MultiLog on disk; see docs/format.md
