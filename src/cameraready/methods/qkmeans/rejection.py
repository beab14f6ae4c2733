"""The rejection scan: a batch of proposals, walked in order as if each had been drawn after the one before."""

from __future__ import annotations

from numba import njit

from .points import squared_distance


@njit(nogil=True, cache=True)
def _is_covered(row, threshold, centers, first, last):  # pragma: no cover (compiled)
    """Whether one of centers[first:last] lies within `threshold` (squared) of the row, and how many were looked at."""
    for j in range(first, last):
        if squared_distance(row, centers[j]) <= threshold:
            return True, j - first + 1
    return False, last - first


@njit(nogil=True, cache=True)
def accept_centers(rows, thresholds, goal, centers, count, accepted):  # pragma: no cover (compiled)
    """Walk the proposals; an accepted one becomes a centre at once. Stops at `goal` centres.

    A proposal x with uniform u is accepted if threshold = u q(x) < D^2(x, S). The distance to centres older than the
    batch has been tested; here those of the batch are: centers[count:]. Writes the rows accepted to `centers`, their
    positions in the batch to `accepted`; returns (number accepted, proposals walked, distances computed).
    """
    first = count
    distances = 0
    for i in range(rows.shape[0]):
        covered, looked_at = _is_covered(rows[i], thresholds[i], centers, first, count)
        distances += looked_at
        if not covered:
            centers[count] = rows[i]
            accepted[count - first] = i
            count += 1
            if count == goal:
                return count - first, i + 1, distances
    return count - first, rows.shape[0], distances


@njit(nogil=True, cache=True)
def accept_candidates(rows, thresholds, start, wanted, centers, first, count, accepted):  # pragma: no cover (compiled)
    """Walk the proposals from `start` until `wanted` are accepted given the centres as they are; none becomes one.

    Writes their positions to `accepted`; returns (number accepted, next position, distances computed).
    """
    found = 0
    distances = 0
    for i in range(start, rows.shape[0]):
        if found == wanted:
            return found, i, distances
        covered, looked_at = _is_covered(rows[i], thresholds[i], centers, first, count)
        distances += looked_at
        if not covered:
            accepted[found] = i
            found += 1
    return found, rows.shape[0], distances
