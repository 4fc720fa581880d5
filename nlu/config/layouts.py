"""What a row must hold for each kind of task; known before anything is read, so that it can be checked first."""

from typing import Literal

Layout = Literal["single", "pair", "units"]

TEXT_ROLES: dict[str, tuple[tuple[str, ...], ...]] = {
    "single": (("text",),),
    "pair": (("text_a", "text_b"),),
    "units": (("tokens",), ("text",)),
}
"""Which fields hold the text of a layout: all of any one alternative."""

TARGET_ROLES: dict[str, tuple[str, ...]] = {"single": ("label",), "pair": ("label",), "units": ("tags", "spans")}
"""Which field holds what is to be learned: one of these."""

ROLES = ("text", "text_a", "text_b", "tokens", "label", "tags", "spans")


def missing_roles(layout: str, fields: dict[str, str | int], file_format: str) -> list[str]:
    """Return the fields that a layout needs and `data.fields` lacks; empty where all are there."""
    if file_format == "lines":
        return [] if layout == "single" else list(TEXT_ROLES[layout][0])
    alternatives = [[role for role in roles if role not in fields] for roles in TEXT_ROLES[layout]]
    lacking = min(alternatives, key=len)
    targets = TARGET_ROLES[layout]
    return lacking + ([] if any(role in fields for role in targets) else [" or ".join(targets)])
