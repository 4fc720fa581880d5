"""nlu: compose, train, evaluate and record experiments on BERT-family models."""

__version__ = "0.1.0"
