"""The models of ``confluo-vote --model``: a row for each.  The class of a model is loaded when it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from confluo_tools.vote.model import Model


class ModelRow(NamedTuple):
    """``help``: one line for ``--model help``; ``options``: those that only some models use; ``module``, ``cls``."""

    name: str
    help: str
    options: tuple[str, ...]
    module: str
    cls: str


MODELS = (
    ModelRow(
        "vote",
        "each flow with loss divides one vote among the links of its path (007, Algorithm 1)",
        ("--adjust", "--total", "--threshold", "--floor"),
        "model_vote",
        "VoteModel",
    ),
    ModelRow(
        "mle",
        "the links that make the losses most likely (as Flock)",
        ("--p-bad", "--p-good", "--prior", "--ratio"),
        "model_likelihood",
        "LikelihoodModel",
    ),
    ModelRow(
        "cover",
        "few links that explain all flows with loss, greedily (007, Algorithm 2)",
        (),
        "model_cover",
        "CoverModel",
    ),
    ModelRow(
        "milp-binary",
        "the fewest links that explain all flows with loss (007, program 3; needs scipy)",
        ("--time-limit",),
        "model_programs",
        "BinaryProgram",
    ),
    ModelRow(
        "milp-integer",
        "packets lost by link, of the fewest links that explain them (007, program 4; needs scipy)",
        ("--time-limit",),
        "model_programs",
        "IntegerProgram",
    ),
)
NAMES = tuple(row.name for row in MODELS)


def model_of(name: str) -> Model:
    """The model of that name.  Raises KeyError."""
    from importlib import import_module

    row = {row.name: row for row in MODELS}[name]
    found: Model = getattr(import_module(f"confluo_tools.vote.{row.module}"), row.cls)()
    return found


def users_of(option: str) -> list[str]:
    """The names of the models that use an option."""
    return [row.name for row in MODELS if option in row.options]


def help_lines() -> list[str]:
    """One line per model: its name, what it does, its options."""
    return [f"{row.name:<13} {row.help}" for row in MODELS]
