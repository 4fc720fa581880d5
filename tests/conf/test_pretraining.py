"""The choices of pretraining, which go only with one another."""

CORPUS = ("data=corpus", "data.train=corpus.txt")
STRUCTBERT = (*CORPUS, "task=structbert", "data.break_mode=complete_doc")


def test_other_tasks_refuse_a_corpus_and_the_head_of_words(composer):
    for task in ("classify", "match", "tag", "regress", "multilabel", "siamese"):
        (problem,) = composer.problems_of(composer.plain(*CORPUS, f"task={task}"))
        assert problem.startswith(f"task={task} needs ") and problem.endswith("for rows with labels")
    (problem,) = composer.problems_of(composer.plain("head=words"))
    assert problem.startswith("head is words, but task=classify takes linear, mlp")
    (problem,) = composer.problems_of(composer.plain(*STRUCTBERT, "head=words"))
    assert problem.startswith("head is words, but task=structbert takes words_and_class")
