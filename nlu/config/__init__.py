"""Typed configuration: schema and types of keys, composition, `checks` of it, and the `entry` of commands."""
