"""Adapters: small modules that are trained instead of the weights of a pretrained encoder."""
