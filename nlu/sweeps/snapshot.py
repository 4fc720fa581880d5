"""A search at one moment, in a form that another process can read without the storage and its credentials."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import InMemoryStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial


@dataclass(frozen=True)
class Snapshot:
    """All that the page of a search shows, besides the results in the folders of its trials. It can be pickled."""

    taken_s: float
    """seconds since 1970"""
    folder: Path
    """that of the search"""
    name: str
    direction: StudyDirection
    attributes: Mapping[str, Any]
    """the user attributes of the study"""
    trials: list[FrozenTrial]

    def study(self) -> optuna.Study:
        """Return the study, in memory; its trials have other ids than in the storage, and the same numbers."""
        storage = InMemoryStorage()
        study = optuna.create_study(storage=storage, study_name=self.name, direction=self.direction)
        for key, value in self.attributes.items():
            study.set_user_attr(key, value)
        study_id = storage.get_study_id_from_name(self.name)
        for trial in self.trials:
            storage.create_new_trial(study_id, template_trial=trial)
        return study
