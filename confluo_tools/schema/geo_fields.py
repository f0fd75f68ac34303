"""Names of the fields that --geo adds to records with addresses."""

from __future__ import annotations

PLACE_NAMES = ("country", "city", "asn", "org")
GEO_FIELDS = tuple(f"{side}_{what}" for what in PLACE_NAMES for side in ("src", "dst"))
