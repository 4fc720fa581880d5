"""Serve a trained run over HTTP, or in a prompt."""
