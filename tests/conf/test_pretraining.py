"""The choices of pretraining, which go only with one another."""

import pytest

CORPUS = ("data=corpus", "data.train=corpus.txt")
STRUCTBERT = (*CORPUS, "task=structbert", "data.break_mode=complete_doc")


@pytest.mark.thorough
def test_a_corpus_chooses_its_task_and_fits_every_model_and_method(composer, choices):
    assert composer.plain(*CORPUS)["task"]["_target_"] == "nlu.tasks.mlm.Mlm"
    for group in ("model", "optimizer", "scheduler", "adapter", "precision", "tokenizer"):
        # These models bring a head of their own, or compare the texts of pairs; int8 and int8_compiled only predict.
        for name in set(choices(group)) - {"lstm_crf", "match_cnn", "re2", "int8", "int8_compiled"}:
            given = composer.required.get((group, name), [])
            assert composer.problems_of(composer.plain(*CORPUS, f"{group}={name}", *given)) == [], name
    for name in ("plain", "rdrop", "fgm", "freelb"):
        assert composer.problems_of(composer.plain(*CORPUS, f"method={name}")) == []
    assert composer.problems_of(composer.plain(*CORPUS, "head=words")) == []
    assert composer.problems_of(composer.plain(*STRUCTBERT, "head=words_and_class")) == []
    for method in ("rdrop", "fgm", "freelb"):
        assert composer.problems_of(composer.plain(*STRUCTBERT, f"method={method}")) == []


def test_other_tasks_refuse_a_corpus_and_the_head_of_words(composer):
    for task in ("classify", "match", "tag", "regress", "multilabel", "siamese"):
        (problem,) = composer.problems_of(composer.plain(*CORPUS, f"task={task}"))
        assert problem.startswith(f"task={task} needs ") and problem.endswith("for rows with labels")
    (problem,) = composer.problems_of(composer.plain("head=words"))
    assert problem.startswith("head is words, but task=classify takes linear, mlp")
    (problem,) = composer.problems_of(composer.plain(*STRUCTBERT, "head=words"))
    assert problem.startswith("head is words, but task=structbert takes words_and_class")
