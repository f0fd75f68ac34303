"""Options of anonymisation: --anonymize of commands that write records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from confluo_tools.cli.groups import OptionGroup
from confluo_tools.cli.options import option
from confluo_tools.console import tell
from confluo_tools.errors import UsageError
from confluo_tools.formats.registry import either

if TYPE_CHECKING:
    from confluo_tools.formats.anonymize import AnonymizeChoice, AnonymousRecords
    from confluo_tools.schema import Schema


class AnonymizeOptions(OptionGroup):
    """--anonymize, and what it does not change."""

    anonymize: Annotated[
        str | None,
        option(
            "--anonymize", panel="Output", metavar="KEY", help="Replace addresses by others, by the key in this file."
        ),
    ] = None
    anonymize_keep: Annotated[
        str | None,
        option("--anonymize-keep", panel="Output", metavar="LIST", help="Leave these: mac, oui, payload, text."),
    ] = None
    anonymize_ports: Annotated[
        bool, option("--anonymize-ports", panel="Output", help="With --anonymize, also replace ports.")
    ] = False

    def choice(self) -> AnonymizeChoice | None:
        """What was chosen; None: nothing is anonymised.  Raises UsageError."""
        if self.anonymize is None:
            for name, given in (("--anonymize-keep", self.anonymize_keep), ("--anonymize-ports", self.anonymize_ports)):
                if given:
                    raise UsageError("says how to anonymise", where=name, hint="add --anonymize KEY")
            return None
        from confluo_tools.formats.anonymize import KEEP, AnonymizeChoice, read_key

        words = [word.strip() for word in (self.anonymize_keep or "").split(",") if word.strip()]
        for word in words:
            if word not in KEEP:
                raise UsageError(f"unknown word '{word}'", where="--anonymize-keep", hint=f"use {either(KEEP)}")
        return AnonymizeChoice(read_key(self.anonymize), frozenset(words), self.anonymize_ports)

    def records(self, schema: Schema, kind: str) -> AnonymousRecords | None:
        """What makes records with ``schema`` anonymous; None: they stay.  Says what an output of ``kind`` lacks."""
        choice = self.choice()
        if choice is None:
            return None
        from confluo_tools.cli.output import CHARTS
        from confluo_tools.formats.anonymize import AnonymousRecords

        if kind in CHARTS:
            raise UsageError("is for records", where="--anonymize", hint=f"leave -o {kind} out")
        hidden = AnonymousRecords(schema, choice)
        if hidden.left_out and kind not in ("pcap", "pcapng"):
            tell(f"left out, because an address may be in them: {', '.join(hidden.left_out)}")
        return hidden
