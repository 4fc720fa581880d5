"""Pairs of texts with a larger label have to be more similar: each two pairs of a step are compared.

    log (1 + sum over i, j with y_i > y_j of exp(scale (s_j - s_i)))
    with s the cosine (Su 2022, https://kexue.fm/archives/8847), or the similarity by angle (Li and Li 2023,
    https://arxiv.org/abs/2309.12871, equation 5): of the halves of the vectors as real and imaginary parts,
    s = |sum of the real and imaginary parts of (u / |u|) / (v / |v|)|

Axes: N pairs, D width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from nlu.config.errors import UserError
from nlu.config.keys import takes
from nlu.losses import keys as schemas
from nlu.losses.loss import RowLoss


@takes(schemas.Cosent)
class Cosent:
    """CoSENT, in nats; the loss of a step times its pairs."""

    by_row = False
    bind = RowLoss.bind

    def __init__(self, keys: schemas.Cosent):
        self.scale = keys.scale

    def __call__(self, cosines_N1: Tensor, labels_N: Tensor) -> Tensor:
        """Return the loss times the number of pairs, float32; of cosines, or of other similarities."""
        return self.in_order(cosines_N1[:, 0], labels_N)

    def in_order(self, similarities_N: Tensor, labels_N: Tensor) -> Tensor:
        """Return the loss of similarities that should have the order of the labels."""
        scaled_N = similarities_N * self.scale
        differences_NN = scaled_N[None] - scaled_N[:, None]
        wrong_NN = differences_NN.masked_fill(labels_N[:, None] <= labels_N[None], -torch.inf)
        # The zero is the 1 in the logarithm.
        return len(labels_N) * F.pad(wrong_NN.flatten(), (0, 1)).logsumexp(0)


@takes(schemas.Angle)
class Angle(Cosent):
    """AnglE: CoSENT over angles in the complex plane, whose gradient does not vanish where a cosine is near 1."""

    def __call__(self, first_ND: Tensor, second_ND: Tensor, labels_N: Tensor) -> Tensor:  # type: ignore[override]
        """Return the loss times the number of pairs, float32; of vectors of an even width, else UserError is
        raised."""
        if (width := first_ND.shape[1]) % 2:
            raise UserError(
                f"loss=angle compares the halves of vectors, but these have {width} numbers; set task.dims, and the "
                "width of the encoder, to even numbers, or loss=cosent"
            )
        (a_NH, b_NH), (c_NH, d_NH) = first_ND.chunk(2, dim=1), second_ND.chunk(2, dim=1)
        norms_N = (first_ND.norm(dim=1) * second_ND.norm(dim=1)).clamp_min(1e-12)
        real_N = (a_NH * c_NH + b_NH * d_NH).sum(1) / norms_N
        imaginary_N = (b_NH * c_NH - a_NH * d_NH).sum(1) / norms_N
        return self.in_order((real_N + imaginary_N).abs(), labels_N)
