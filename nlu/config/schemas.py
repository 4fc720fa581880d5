"""What the top-level keys of each command's configuration are. Nothing is imported: --help asks for it too."""

RUN = "nlu.config.schema.Run"
EVALUATE = "nlu.config.inference.Evaluate"
SCHEMAS = {
    "train": RUN, "preprocess": RUN, "evaluate": EVALUATE,
    "export": "nlu.config.inference.Export", "predict": "nlu.config.inference.Predict",
    "serve": "nlu.config.inference.Serve",
}  # fmt: skip
"""Of each command that composes a configuration, the dataclass of the top-level keys."""
