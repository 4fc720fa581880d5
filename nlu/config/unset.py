"""What stands where a configuration has no value."""

MISSING = "???"
"""A value that is still to be set, which is reported wherever it stands; no rule speaks of it as well."""


class _Unresolved:
    """Stands for a value whose interpolation failed, which is reported by whoever resolved it."""

    def __repr__(self) -> str:
        return "unresolved"


UNRESOLVED = _Unresolved()
