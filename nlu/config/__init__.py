"""Typed configuration: schema, signatures, validation, durations and the entry that every command shares."""
