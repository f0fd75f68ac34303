"""The zone of local times: --tz."""

from __future__ import annotations

import os

from confluo_tools.errors import UsageError


def use_zone(name: str) -> None:
    """Make ``name`` (Europe/Berlin) the zone of local times in this process.  Raises UsageError: it is not known.

    ``os.environ`` keeps the zone of the user, and programs that this process starts get that.
    """
    from time import tzset

    os.putenv("TZ", _file(name))  # of the C library only
    tzset()


def _file(name: str) -> str:
    """The path of the rules of a zone."""
    import zoneinfo

    try:
        zoneinfo.ZoneInfo(name)
        for folder in zoneinfo.TZPATH:
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                return path
        from importlib.resources import files

        return str(files("tzdata").joinpath("zoneinfo", name))
    except (KeyError, ValueError, OSError, ImportError):
        raise UsageError(f"unknown time zone '{name}'", where="--tz", hint=_hint(name)) from None


def _hint(name: str) -> str:
    from difflib import get_close_matches
    from zoneinfo import available_timezones

    known = sorted(available_timezones())
    if not known:
        return "install tzdata, which has the zones"
    towns = {zone.rpartition("/")[2].lower(): zone for zone in known}
    near = get_close_matches(name, known, n=1)
    town = towns.get(name.rpartition("/")[2].lower(), near[0] if near else "")
    return f"did you mean '{town}'?" if town else "write e.g. Europe/Berlin, or --local for the zone of this host"
