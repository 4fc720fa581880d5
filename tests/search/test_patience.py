"""A storage of any kind may be away in the middle of a search: nothing is lost, and nothing happens twice."""

import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState

from nlu.search.channel import COMPLETE, OUTCOME, TrialChannel
from nlu.search.faults import StorageUnavailable
from nlu.search.storage import patience
from nlu.search.storage.open_study import open_storage
from tests.search import outages

AWAY_S = 0.15


@pytest.fixture(params=[outages.journal_file, pytest.param(outages.database, marks=pytest.mark.thorough)])
def storage(request, tmp_path, monkeypatch):
    monkeypatch.setattr(patience, "FIRST_PAUSE_S", 0.05)
    return request.param(tmp_path)


@pytest.fixture
def study(storage):
    return optuna.create_study(storage=open_storage(storage.url), study_name="s", direction="maximize")


def test_every_call_of_a_search_and_its_jobs_succeeds_once_the_storage_is_back(storage, study):
    for number in range(2):
        with storage.back_after(AWAY_S):
            assert study.ask({"x": FloatDistribution(0, 1)}).number == number
    with storage.back_after(AWAY_S):
        jobs = [TrialChannel(storage.url, "s", number) for number in range(2)]
    for number, job in enumerate(jobs):
        with storage.back_after(AWAY_S):
            assert not job.report(100, number / 10)
        with storage.back_after(AWAY_S):
            job.finish(COMPLETE, value=number / 10)
        with storage.back_after(AWAY_S):
            study.tell(number, number / 10)
    with storage.back_after(AWAY_S):
        found = study.get_trials()
    assert [(trial.number, trial.state.name, trial.value) for trial in found] == [
        (0, "COMPLETE", 0.0), (1, "COMPLETE", 0.1),
    ]  # fmt: skip
    assert [trial.intermediate_values for trial in found] == [{100: 0.0}, {100: 0.1}]
    assert [trial.user_attrs[OUTCOME]["value"] for trial in found] == [0.0, 0.1]


def test_a_search_that_is_to_stop_does_not_wait(storage, study):
    held = open_storage(storage.url)
    hurried = optuna.load_study(storage=held, study_name="s")
    held.is_hurried = lambda: True
    with storage.away(), pytest.raises(StorageUnavailable):
        hurried.get_trials()


class Forgetful(optuna.storages.InMemoryStorage):
    """Carries calls out, and says of the next one that it cannot be reached."""

    is_lost = False

    def create_new_study(self, directions, study_name=None):
        return self._lose(super().create_new_study(directions, study_name))

    def create_new_trial(self, study_id, template_trial=None):
        return self._lose(super().create_new_trial(study_id, template_trial))

    def set_trial_state_values(self, trial_id, state, values=None):
        return self._lose(super().set_trial_state_values(trial_id, state, values))

    def _lose(self, result):
        if self.is_lost:
            self.is_lost = False
            raise OSError(5, "Input/output error")
        return result


@pytest.fixture
def forgetful(monkeypatch):
    monkeypatch.setattr(patience, "FIRST_PAUSE_S", 0.01)
    inner = Forgetful()
    return inner, optuna.create_study(storage=patience.PatientStorage(inner, "url", (OSError,)))


def test_a_trial_that_was_begun_unheard_is_found_and_not_begun_again(forgetful):
    inner, study = forgetful
    study.ask()
    inner.is_lost = True
    assert study.ask().number == 1
    assert study.ask().number == 2 and len(study.get_trials()) == 3


def test_a_study_that_was_created_unheard_is_ours_and_one_of_others_is_not(forgetful):
    inner, study = forgetful
    inner.is_lost = True
    optuna.create_study(storage=study._storage, study_name="s")
    with pytest.raises(optuna.exceptions.DuplicatedStudyError):
        optuna.create_study(storage=study._storage, study_name="s")


def test_a_lost_answer_to_a_close_is_accepted_but_a_close_by_others_is_an_error(forgetful):
    inner, study = forgetful
    study.ask(), study.ask()
    inner.is_lost = True
    study.tell(0, 0.5)
    assert study.get_trials()[0].value == 0.5
    study.tell(1, state=TrialState.FAIL)
    with pytest.raises(optuna.exceptions.UpdateFinishedTrialError):
        study._storage.set_trial_state_values(1, TrialState.COMPLETE, [0.7])


def test_a_lost_answer_to_a_pause_or_its_end_is_accepted_and_a_second_start_is_not(forgetful):
    inner, study = forgetful
    study.ask()
    for state in (TrialState.WAITING, TrialState.RUNNING):
        inner.is_lost = True
        assert study._storage.set_trial_state_values(0, state)
        assert study.get_trials()[0].state == state
    assert not study._storage.set_trial_state_values(0, TrialState.RUNNING), "it runs already"
