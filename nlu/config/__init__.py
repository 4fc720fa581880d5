"""Typed configuration: schema and types, signatures read from source; `checks` of it, and the `entry` of commands."""
