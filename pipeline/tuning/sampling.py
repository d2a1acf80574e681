"""Which texts are worth labelling: diverse ones, and of those alike the one that the model is least sure of.

The hidden states of the texts are cut into as many clusters as texts are wanted, and each cluster gives its most
uncertain text (cluster first, then uncertainty: Zhdanov 2019, "Diverse mini-batch Active Learning"). Clusters first,
since a small model is often sure and wrong: by uncertainty alone whole topics would never be asked about, while
distance alone (k-center, Sener & Savarese 2018) picks what is odd. Needs scikit-learn.
"""

import warnings

import numpy as np
from numpy.typing import NDArray

N_STARTS = 3


def uncertainty(probability: NDArray[np.float64], *, multi: bool) -> NDArray[np.float64]:
    """(n,) how unsure the model is of each text, 0 to 1: 1 less the lead of the first label over the second.

    With several labels a row: how near the label that is nearest to one half is to it. Texts without finite
    probabilities are as unsure as can be.
    """
    if multi:
        unsure = 1 - np.abs(2 * probability - 1).min(axis=1)
    else:
        second, first = np.partition(probability, -2, axis=1)[:, -2:].T
        unsure = 1 - (first - second)
    return np.where(np.isfinite(probability).all(axis=1), unsure, 1.0)


def worth_labelling(
    features: NDArray[np.float32], unsure: NDArray[np.float64], n_texts: int, seed: int
) -> NDArray[np.int64]:
    """Choose texts.

    Args:
        features: (n, F) hidden states.
        unsure: (n,) of ``uncertainty``.
        n_texts: how many are wanted.
        seed: of the clusters.

    Returns:
        Places of at most ``n_texts`` texts, the most uncertain first.
    """
    if len(features) <= n_texts:
        return np.argsort(-unsure, kind="stable")
    clusters = _clusters(_directions(features), n_texts, seed)
    by_uncertainty = np.argsort(-unsure, kind="stable")
    _, firsts = np.unique(clusters[by_uncertainty], return_index=True)
    chosen = np.zeros(len(features), dtype=bool)
    chosen[by_uncertainty[firsts]] = True
    # clusters may be fewer where texts are all but the same: the most uncertain of the others make up for them
    rest = by_uncertainty[~chosen[by_uncertainty]]
    chosen[rest[: n_texts - int(chosen.sum())]] = True
    return by_uncertainty[chosen[by_uncertainty]]


def _directions(features: NDArray[np.float32]) -> NDArray[np.float64]:
    """Standardised, or the few dimensions in which language models have huge values decide alone; of length one."""
    finite = np.where(np.isfinite(features), features, 0.0).astype(np.float64)
    deviation = finite.std(axis=0)
    standardised = (finite - finite.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
    lengths = np.linalg.norm(standardised, axis=1, keepdims=True)
    directions: NDArray[np.float64] = standardised / np.where(lengths > 0, lengths, 1.0)
    return directions


def _clusters(directions: NDArray[np.float64], n_clusters: int, seed: int) -> NDArray[np.int64]:
    from sklearn.cluster import KMeans

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fewer distinct points than clusters
        clusters: NDArray[np.int64] = KMeans(n_clusters, n_init=N_STARTS, random_state=seed).fit_predict(directions)
    return clusters
