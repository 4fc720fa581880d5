"""A Gaussian process over learning curves: configuration and time (Swersky, Snoek, Adams 2014, arXiv:1406.3896).

A curve is the sum of a final value, which depends on the configuration, and of a decay towards it:

    k((x, t), (x', t')) = e + a k(x, x') + f [same trial] + (g + b k(x, x') + c [same trial]) d(t, t')
    d(t, t') = (beta / (t + t' + beta))^alpha

k is Matern 5/2 with a length scale for each parameter; d is the paper's mixture of exponential decays. e and g are what
all curves share: without them, a configuration far from all others would be predicted to end where most trials stand
now, although all trials rise. c and f are what the configuration does not explain. All matrices over points are built
from smaller ones over trials and times.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve, solve_triangular
from scipy.linalg.lapack import dpotri
from scipy.optimize import minimize

OTHERS = 9
"""the parameters of the kernel besides the length scales: logarithms of a, b, c, e, f, g, beta, alpha and the noise"""
JITTER = 1e-6
REFUSED = 1e9


@dataclass(frozen=True)
class Curves:
    """Points of learning curves. Axes: T trials, C columns, N points in the order of their trials, P parameters."""

    x_TC: np.ndarray
    parameter_C: np.ndarray
    trial_N: np.ndarray
    time_N: np.ndarray
    """from 0 to 1"""
    value_N: np.ndarray

    def __post_init__(self) -> None:
        object.__setattr__(self, "apart_PTT", _apart(self.x_TC, self.x_TC, self.parameter_C))
        times, index_N = np.unique(self.time_N, return_inverse=True)
        object.__setattr__(self, "times_U", times)
        object.__setattr__(self, "index_N", index_N)

    apart_PTT: np.ndarray = None  # type: ignore[assignment]
    times_U: np.ndarray = None  # type: ignore[assignment]
    index_N: np.ndarray = None  # type: ignore[assignment]


def prior(parameters: int) -> tuple[np.ndarray, np.ndarray]:
    """Return means and standard deviations of the normal prior of all logarithms."""
    means = np.r_[np.full(parameters, np.log(0.7)), np.log([1.0, 1.0, 0.2, 1.0, 0.02, 1.0, 0.1, 1.0, 0.01])]
    deviations = np.r_[np.full(parameters, 1.0), 1.0, 1.0, 1.5, 1.0, 1.0, 1.0, 1.0, 0.5, 1.5]
    return means, deviations


def _apart(x_AC: np.ndarray, x_BC: np.ndarray, parameter_C: np.ndarray) -> np.ndarray:
    """Return squared distances for each parameter."""
    found = np.zeros((int(parameter_C.max()) + 1, len(x_AC), len(x_BC)))
    for column, parameter in enumerate(parameter_C):
        found[parameter] += (x_AC[:, None, column] - x_BC[None, :, column]) ** 2
    return found


def _matern(apart_PAB: np.ndarray, scales_P: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the kernel, and -2 times its derivative by the squared distance."""
    s = np.sqrt(5 * np.tensordot(scales_P**-2, apart_PAB, 1))
    decay = np.exp(-s)
    return (1 + s + s * s / 3) * decay, 5 / 3 * (1 + s) * decay


def _decay(t_A: np.ndarray, t_B: np.ndarray, beta: float, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """Return d, and beta / (t + t' + beta)."""
    share = beta / (t_A[:, None] + t_B[None] + beta)
    return share**alpha, share


def negative_log_posterior(log_parameters: np.ndarray, curves: Curves) -> tuple[float, np.ndarray]:
    """Return the negative logarithm of likelihood times prior of the kernel's parameters, and its gradient."""
    parameters = len(log_parameters) - OTHERS
    means, deviations = prior(parameters)
    scales_P = np.exp(log_parameters[:parameters])
    a, b, c, e, f, g, beta, alpha, noise = np.exp(log_parameters[parameters:])
    k_TT, slope_TT = _matern(curves.apart_PTT, scales_P)
    d_UU, share_UU = _decay(curves.times_U, curves.times_U, beta, alpha)
    of, at = np.ix_(curves.trial_N, curves.trial_N), np.ix_(curves.index_N, curves.index_N)
    k_NN, d_NN = k_TT[of], d_UU[at]
    same_NN = curves.trial_N[:, None] == curves.trial_N[None]
    decaying_NN = g + b * k_NN + c * same_NN
    covariance = e + a * k_NN + f * same_NN + decaying_NN * d_NN
    count = len(curves.value_N)
    covariance[np.diag_indices(count)] += noise + JITTER
    try:
        factor, _ = cho_factor(covariance, lower=True, overwrite_a=True, check_finite=False)
    except LinAlgError:
        return REFUSED, np.zeros_like(log_parameters)
    weights_N = cho_solve((factor, True), curves.value_N, check_finite=False)
    from_prior = (log_parameters - means) / deviations
    value = 0.5 * curves.value_N @ weights_N + np.log(np.diag(factor)).sum() + 0.5 * from_prior @ from_prior
    inverse, _ = dpotri(factor, lower=1, overwrite_c=1)
    inverse = np.tril(inverse) + np.tril(inverse, -1).T
    # The gradient by a parameter is half the sum of this matrix times the derivative of the covariance.
    m_NN = inverse - np.outer(weights_N, weights_N)
    md_NN = m_NN * d_NN
    # Sums over the points of each pair of trials, since length scales act on pairs of trials.
    pairs_TT = _by_trial(a * m_NN + b * md_NN, curves.trial_N, len(k_TT)) * slope_TT
    by_scale_P = np.tensordot(curves.apart_PTT, pairs_TT, 2) / scales_P**2
    inner_NN = decaying_NN * md_NN
    logs_UU = np.log(share_UU)
    gradient = (
        0.5
        * np.r_[
            by_scale_P,
            a * np.vdot(m_NN, k_NN),
            b * np.vdot(md_NN, k_NN),
            c * md_NN[same_NN].sum(),
            e * m_NN.sum(),
            f * m_NN[same_NN].sum(),
            g * md_NN.sum(),
            alpha * np.vdot(inner_NN, (1 - share_UU)[at]),
            alpha * np.vdot(inner_NN, logs_UU[at]),
            noise * np.trace(m_NN),
        ]
    )
    return float(value), gradient + from_prior / deviations


def _by_trial(values_NN: np.ndarray, trial_N: np.ndarray, trials: int) -> np.ndarray:
    one_hot_NT = np.zeros((len(trial_N), trials))
    one_hot_NT[np.arange(len(trial_N)), trial_N] = 1
    return one_hot_NT.T @ values_NN @ one_hot_NT


def fitted(curves: Curves, start: np.ndarray, iterations: int) -> np.ndarray:
    """Return the most probable parameters of the kernel, found from `start`."""
    means, deviations = prior(len(start) - OTHERS)
    low, high = means - 4 * deviations, means + 4 * deviations
    found = minimize(
        negative_log_posterior,
        np.clip(start, low, high),
        args=(curves,),
        jac=True,
        method="L-BFGS-B",
        bounds=list(zip(low, high, strict=True)),
        options={"maxiter": iterations},
    )
    return found.x


class Posterior:
    """What the points say about any configuration and time. Raises LinAlgError if the covariance is singular."""

    def __init__(self, curves: Curves, log_parameters: np.ndarray):
        self._curves = curves
        parameters = len(log_parameters) - OTHERS
        self._scales_P = np.exp(log_parameters[:parameters])
        self._a, self._b, self._c, self._e, self._f, self._g = np.exp(log_parameters[parameters : parameters + 6])
        self._beta, self._alpha, self._noise = np.exp(log_parameters[parameters + 6 :])
        k_TT, _ = _matern(curves.apart_PTT, self._scales_P)
        same_TT = np.eye(len(k_TT))
        covariance = self._covariance(k_TT, same_TT, curves.trial_N, curves.time_N)
        covariance[np.diag_indices(len(covariance))] += self._noise + JITTER
        self._factor = cho_factor(covariance, lower=True, overwrite_a=True, check_finite=False)
        self._weights_N = cho_solve(self._factor, curves.value_N, check_finite=False)

    def _covariance(self, k_AT: np.ndarray, same_AT: np.ndarray, row_M: np.ndarray, time_M: np.ndarray) -> np.ndarray:
        """Return the covariance of M points, in rows of A, with those of the curves."""
        curves = self._curves
        times, index_M = np.unique(time_M, return_inverse=True)
        d_MN = _decay(times, curves.times_U, self._beta, self._alpha)[0][np.ix_(index_M, curves.index_N)]
        of = np.ix_(row_M, curves.trial_N)
        k_MN, same_MN = k_AT[of], same_AT[of]
        decaying_MN = self._g + self._b * k_MN + self._c * same_MN
        covariance: np.ndarray = self._e + self._a * k_MN + self._f * same_MN + decaying_MN * d_MN
        return covariance

    def at(self, x_MC: np.ndarray, trial_M: np.ndarray, time_M: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return means and standard deviations of values without noise.

        `trial_M` are the trials of the points, -1 for a new one.
        """
        curves = self._curves
        k_MT, _ = _matern(_apart(x_MC, curves.x_TC, curves.parameter_C), self._scales_P)
        same_MT = (trial_M[:, None] == np.arange(len(curves.x_TC))[None]).astype(float)
        cross_MN = self._covariance(k_MT, same_MT, np.arange(len(x_MC)), time_M)
        mean_M = cross_MN @ self._weights_N
        known_NM = solve_triangular(self._factor[0], cross_MN.T, lower=True, check_finite=False)
        decay_M = (self._beta / (2 * time_M + self._beta)) ** self._alpha
        own_M = self._e + self._a + self._f + (self._g + self._b + self._c) * decay_M
        variance_M = own_M - (known_NM * known_NM).sum(0)
        return mean_M, np.sqrt(np.maximum(variance_M, 1e-9))


@cache
def thinned(count: int, most: int) -> list[int]:
    """Return at most `most` of the positions below `count`, spaced geometrically, the last one among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(at) - 1 for at in np.geomspace(1, count, most)})
