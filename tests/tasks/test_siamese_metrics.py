"""The loss decides how two texts that are encoded apart are scored."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from nlu.data.collate import collate
from nlu.losses.contrastive import Contrastive
from nlu.losses.info_nce import InfoNce
from nlu.tasks.siamese import Retrieve, Siamese
from tests.tasks.conftest import Headless
from tests.training.in_process import TINY, train

ROWS = "".join(f"text {i},text {i + i % 2},{i % 2}\n" for i in range(24))


@pytest.mark.parametrize(("loss", "metric"), [("contrastive", "loss"), ("cross_entropy", "threshold")])
def test_a_metric_that_the_loss_does_not_allow_is_refused_before_training(tmp_path, capfd, loss, metric):
    (tmp_path / "pairs.csv").write_text("text_a,text_b,label\n" + ROWS)
    train(
        *TINY, "task=siamese", "data=files", f"data.train={tmp_path}/pairs.csv", f"loss={loss}",
        f"trainer.major_metric={metric}", "trainer.max_duration=1st", f"hydra.run.dir={tmp_path}/run", status=2,
    )  # fmt: skip
    said = capfd.readouterr().err
    assert f"trainer.major_metric is {metric}, which this task and loss cannot produce" in said
    assert "accuracy" in said and not (tmp_path / "run").exists()


def test_a_pair_at_the_threshold_is_kept_as_it_was_scored():
    task = Siamese(Contrastive(), SimpleNamespace(names=["no", "yes"]), threshold=0.5)
    kept = [task.finished({"label": "no", "similarity": value}, {"threshold": 0.5}) for value in (0.5, 0.49)]
    assert [record["prediction"] for record in kept] == ["yes", "no"]


def test_info_nce_does_not_treat_a_duplicate_of_a_right_text_as_wrong(store_of):
    pairs = [
        ("what is it", "an apple", 1), ("where is it", "the moon", 1), ("which fruit", "an apple", 1),
        ("what is it", "a pear", 1), ("what is it", "the sun", 0), ("an apple", "which fruit", 1),
        ("it is what", "apple an", 1),
    ]  # fmt: skip
    lines = "".join(f"{first}\t{second}\t{label}\n" for first, second, label in pairs)
    store = store_of("a.tsv", lines, Siamese, fields={"text_a": 0, "text_b": 1, "label": 2})
    batch = collate(store.sets["dev"], np.arange(len(pairs)))
    unit_BD = torch.nn.functional.normalize(torch.randn(2 * len(pairs), 5, generator=torch.Generator().manual_seed(0)))
    first_BD, second_BD = (part.requires_grad_() for part in unit_BD.split(len(pairs)))
    outputs = {"first": first_BD, "second": second_BD, "logits": (first_BD * second_BD).sum(1, keepdim=True)}
    loss = Siamese(InfoNce(temperature=0.5), store.target).terms(Headless(), batch, outputs)["labels"]
    cosines_BB = (first_BD @ second_BD.T).detach().double().numpy()
    right = {(first, second) for first, second, label in pairs if label}
    total = 0.0
    for row, (first, second, label) in enumerate(pairs[example] for example in batch.examples_B):
        candidates = [pairs[example][1] for example in batch.examples_B]
        is_wrong = np.array(
            [
                text not in (first, second, *candidates[:place]) and (first, text) not in right
                for place, text in enumerate(candidates)
            ]
        )
        own = np.exp(cosines_BB[row, row] / 0.5)
        total -= label * np.log(own / (own + np.exp(cosines_BB[row] / 0.5)[is_wrong].sum()))
    assert loss.item() == pytest.approx(total, rel=1e-5)
    loss.backward()
    assert first_BD.grad.isfinite().all() and second_BD.grad.isfinite().all()


def test_each_query_is_scored_by_its_own_vector_against_those_of_the_candidates(store_of):
    lines = "what is it\tan apple\t1\nwhat is it\tthe moon\t0\nwhere is it\tan apple\t0\nwhere is it\tthe moon\t1\n"
    store = store_of("a.tsv", lines, Retrieve, fields={"text_a": 0, "text_b": 1, "label": 2})
    part = store.sets["dev"]
    batch = collate(part, np.arange(4))
    # Cosines of 0.8 with the right candidate and of 0.6 with the other.
    first_ND = torch.tensor([[1.0, 0], [1, 0], [0, 1], [0, 1]])[batch.examples_B]
    second_ND = torch.tensor([[0.8, 0.6], [0.6, 0.8], [0.8, 0.6], [0.6, 0.8]])[batch.examples_B]
    task = Retrieve(InfoNce(), store.target)
    outputs = {"first": first_ND, "second": second_ND, "logits": (first_ND * second_ND).sum(1, keepdim=True)}
    scorer, names = task.scorer({}), {}
    for example, record in zip(batch.examples_B.tolist(), task.records(part, batch, Headless(), outputs), strict=True):
        scorer.add(record)
        names[example] = record["query"], record["candidate"]
    assert names[0][0] == names[1][0] != names[2][0] == names[3][0]
    assert names[0][1] == names[2][1] != names[1][1] == names[3][1]
    assert scorer.result().metrics["mrr"] == scorer.result().metrics["recall_1"] == 1.0
