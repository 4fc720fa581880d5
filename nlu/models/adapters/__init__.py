"""Adapters: small modules that are trained in the place of a pretrained encoder's own weights."""
