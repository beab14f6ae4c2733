"""The compiled loops: the prox of one edge, the prox of all edges, and the steps of the stochastic methods.

``W`` is (K, D); the edge penalty acts on its first ``width`` columns. Rows of the data come in compressed form (CSR).
"""

from __future__ import annotations

import numpy as np
from numba import njit

SQUARED, LOGISTIC, LINEAR = 0, 1, 2
AHEAD = 128  # steps whose rows are read together


@njit(cache=True, inline="always")
def loss_derivative(loss, margin, target):
    """phi'(margin): squared 1/2 (margin - y)^2, logistic log(1 + exp(-y margin)) with y = +-1, linear y margin."""
    if loss == SQUARED:
        return margin - target
    if loss == LOGISTIC:
        signed = target * margin
        if signed > 0:
            e = np.exp(-signed)
            return -target * e / (1.0 + e)
        return -target / (1.0 + np.exp(signed))
    return target


@njit(cache=True)
def loss_value(loss, margin, target):
    """phi(margin)."""
    if loss == SQUARED:
        return 0.5 * (margin - target) ** 2
    if loss == LOGISTIC:
        signed = target * margin
        return np.log1p(np.exp(-abs(signed))) + max(-signed, 0.0)
    return target * margin


@njit(cache=True)
def mean_loss(W, data, indices, indptr, y, task, loss, rows):
    """Mean of phi over the given rows, or over all if ``rows`` is empty; keeps nothing."""
    count = rows.shape[0] if rows.shape[0] > 0 else y.shape[0]
    total = 0.0
    for r in range(count):
        i = rows[r] if rows.shape[0] > 0 else r
        margin = 0.0
        for s in range(indptr[i], indptr[i + 1]):
            margin += data[s] * W[task[i], indices[s]]
        total += loss_value(loss, margin, y[i])
    return total / count


@njit(cache=True)
def row_margins(W, data, indices, indptr, task):
    """x_i . w_{t_i} of all rows."""
    margins = np.empty(task.shape[0])
    for i in range(task.shape[0]):
        margin = 0.0
        for s in range(indptr[i], indptr[i + 1]):
            margin += data[s] * W[task[i], indices[s]]
        margins[i] = margin
    return margins


@njit(cache=True)
def rows_by_task(values, data, indices, indptr, task, power, K, D):
    """sum over the rows i of each task of values_i x_i^power, (K, D); power is 1 or 2."""
    total = np.zeros((K, D))
    for i in range(task.shape[0]):
        for s in range(indptr[i], indptr[i + 1]):
            total[task[i], indices[s]] += values[i] * (data[s] if power == 1 else data[s] * data[s])
    return total


@njit(cache=True)
def row_squares(data, indptr):
    """||x_i||^2 of all rows."""
    squares = np.empty(indptr.shape[0] - 1)
    for i in range(squares.shape[0]):
        total = 0.0
        for s in range(indptr[i], indptr[i + 1]):
            total += data[s] * data[s]
        squares[i] = total
    return squares


@njit(cache=True)
def edge_prox(W, u, v, tau, p, width):
    """Prox of tau ||w_u - w_v||_p: the mean stays, the difference s shrinks by 2 tau (its prox has weight 2 tau)."""
    if p == 2:
        norm = 0.0
        for j in range(width):
            s = W[u, j] - W[v, j]
            norm += s * s
        norm = np.sqrt(norm)
        if norm <= 2.0 * tau:
            for j in range(width):
                mean = 0.5 * (W[u, j] + W[v, j])
                W[u, j] = mean
                W[v, j] = mean
        else:
            move = tau / norm
            for j in range(width):
                s = (W[u, j] - W[v, j]) * move
                W[u, j] -= s
                W[v, j] += s
    else:
        for j in range(width):
            s = W[u, j] - W[v, j]
            if abs(s) <= 2.0 * tau:
                mean = 0.5 * (W[u, j] + W[v, j])
                W[u, j] = mean
                W[v, j] = mean
            elif s > 0:
                W[u, j] -= tau
                W[v, j] += tau
            else:
                W[u, j] += tau
                W[v, j] -= tau


@njit(cache=True)
def full_prox(W, Y, edges, bounds, p, width, curvature, tolerance, max_iter):
    """Prox of sum_e bounds_e ||w_u - w_v||_p at W, in place; returns the duality gap reached.

    Accelerated projected ascent with restarts on the dual, min_y 1/2 ||Z - D'y||^2 with ||y_e||_q <= bounds_e; the
    primal point is Z - D'y, and its distance from the prox is at most sqrt(2 gap). ``Y`` (m, width) is the start and
    receives the dual point; ``curvature`` bounds the largest eigenvalue of D D'.
    """
    m = edges.shape[0]
    for e in range(m):
        project(Y, e, bounds[e], p, width)
        u, v = edges[e, 0], edges[e, 1]
        for j in range(width):
            W[u, j] -= Y[e, j]
            W[v, j] += Y[e, j]
    # W always holds Z - D'V for the extrapolated point V, so that a gradient costs one pass over the edges.
    V = Y.copy()
    new = np.empty(width)
    momentum = 1.0
    gap = np.inf
    for iteration in range(max_iter):
        if iteration % 4 == 0:  # at V; projected points only count, so the gap is read where V = Y
            gap = 0.0
            feasible = True
            for e in range(m):
                u, v = edges[e, 0], edges[e, 1]
                norm, inner, size = 0.0, 0.0, 0.0
                for j in range(width):
                    s = W[u, j] - W[v, j]
                    inner += s * V[e, j]
                    if p == 2:
                        norm += s * s
                        size += V[e, j] * V[e, j]
                    else:
                        norm += abs(s)
                        size = max(size, abs(V[e, j]))
                if p == 2:
                    norm, size = np.sqrt(norm), np.sqrt(size)
                feasible = feasible and size <= bounds[e] * (1 + 1e-12)
                gap += bounds[e] * norm - inner
            if feasible and gap <= tolerance:
                return gap
        # One step from V for all edges; the differences are read before W changes.
        step = np.empty((m, width))
        for e in range(m):
            u, v = edges[e, 0], edges[e, 1]
            for j in range(width):
                step[e, j] = V[e, j] + (W[u, j] - W[v, j]) / curvature
        turn = 0.0
        grown = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * momentum * momentum))
        for e in range(m):
            project(step, e, bounds[e], p, width)
            for j in range(width):
                turn += (V[e, j] - step[e, j]) * (step[e, j] - Y[e, j])
        # A restart, or the point where the gap is read next, takes the step without momentum.
        plain = turn > 0 or iteration % 4 == 3
        factor = 0.0 if plain else (momentum - 1.0) / grown
        momentum = 1.0 if turn > 0 else grown
        for e in range(m):
            u, v = edges[e, 0], edges[e, 1]
            for j in range(width):
                new[j] = step[e, j] + factor * (step[e, j] - Y[e, j])
                change = new[j] - V[e, j]
                W[u, j] -= change
                W[v, j] += change
                V[e, j] = new[j]
                Y[e, j] = step[e, j]
    for e in range(m):  # end at the feasible point
        u, v = edges[e, 0], edges[e, 1]
        for j in range(width):
            change = Y[e, j] - V[e, j]
            W[u, j] -= change
            W[v, j] += change
    return gap


@njit(cache=True)
def project(Y, e, bound, p, width):
    """Row e of Y onto the ball of the dual norm (2 for p=2, maximum for p=1)."""
    if p == 2:
        size = 0.0
        for j in range(width):
            size += Y[e, j] * Y[e, j]
        size = np.sqrt(size)
        if size > bound:
            for j in range(width):
                Y[e, j] *= bound / size
    else:
        for j in range(width):
            Y[e, j] = min(max(Y[e, j], -bound), bound)


@njit(cache=True, inline="always")
def count_row(W, sums, counted, row, k):
    """Add row ``row`` to the running sum for the iterates during which it did not change."""
    if k > counted[row]:
        for j in range(W.shape[1]):
            sums[row, j] += (k - counted[row]) * W[row, j]
        counted[row] = k


@njit(cache=True, inline="always")
def gradient_step(
    W, data, indices, indptr, y, task, loss, scale, ridge, ridge_width, samples, derivative, h, k, average
):
    """w <- w - h (mean gradient of the drawn examples); all derivatives are taken before any row moves."""
    sums, counted, averaging = average
    batch = samples.shape[0]
    for b in range(batch):
        i = samples[b]
        t = task[i]
        margin = 0.0
        for s in range(indptr[i], indptr[i + 1]):
            margin += data[s] * W[t, indices[s]]
        derivative[b] = loss_derivative(loss, margin, y[i]) * scale[i] / batch
        if averaging:
            count_row(W, sums, counted, t, k)
    if ridge_width > 0:
        for b in range(batch):
            t = task[samples[b]]
            shrink = 1.0 - h * ridge[t] * scale[samples[b]] / batch
            for j in range(ridge_width):
                W[t, j] *= shrink
    for b in range(batch):
        i = samples[b]
        t = task[i]
        for s in range(indptr[i], indptr[i + 1]):
            W[t, indices[s]] -= h * derivative[b] * data[s]


@njit(cache=True)
def touch_rows(data, indices, indptr, y, task, scale, samples, first, last):
    """Read the rows of the coming steps once, in any order the processor likes: their cache misses overlap.

    In the steps themselves each row would be waited for alone, which made large n three times slower.
    """
    total = 0.0
    for k in range(first, last):
        for b in range(samples.shape[1]):
            i = samples[k, b]
            total += y[i] + scale[i] + task[i]
            for s in range(indptr[i], indptr[i + 1], 8):  # one number of every cache line
                total += data[s] + indices[s]
    return total


@njit(cache=True)
def incremental_steps(
    W, data, indices, indptr, y, task, loss, scale, ridge, ridge_width, samples, steps, first, average,
    drawn, block_start, block_edges, edges, tau, p, width,
):  # fmt: skip
    """Algorithm B and C: a gradient step, then the prox of one drawn block of edges that share no task.

    ``tau[e]`` = lam a_e / pi_e, with pi_e the probability that e is in the drawn block.
    """
    sums, counted, averaging = average
    derivative = np.empty(samples.shape[1])
    read = 0.0
    for k in range(samples.shape[0]):
        if k % AHEAD == 0:
            last = min(k + AHEAD, samples.shape[0])
            read += touch_rows(data, indices, indptr, y, task, scale, samples, k, last)
        h = steps[k]
        gradient_step(
            W, data, indices, indptr, y, task, loss, scale, ridge, ridge_width,
            samples[k], derivative, h, first + k, average,
        )  # fmt: skip
        if drawn.shape[0] > 0:
            for q in range(block_start[drawn[k]], block_start[drawn[k] + 1]):
                e = block_edges[q]
                u, v = edges[e, 0], edges[e, 1]
                if averaging:
                    count_row(W, sums, counted, u, first + k)
                    count_row(W, sums, counted, v, first + k)
                edge_prox(W, u, v, h * tau[e], p, width)
    return read  # so that the compiler keeps the reading


@njit(cache=True)
def full_prox_steps(
    W, data, indices, indptr, y, task, loss, scale, ridge, ridge_width, samples, steps, first, average,
    Y, edges, lam, p, width, curvature,
):  # fmt: skip
    """Algorithm A: a gradient step, then the prox of the whole penalty, warm-started at the last dual point.

    ``Y`` holds the dual point divided by the step size. The prox's error is below 1e-4 of the penalty's own move.
    """
    sums, counted, averaging = average
    derivative = np.empty(samples.shape[1])
    mean_square = (lam * lam).mean()
    for k in range(samples.shape[0]):
        h = steps[k]
        gradient_step(
            W, data, indices, indptr, y, task, loss, scale, ridge, ridge_width,
            samples[k], derivative, h, first + k, average,
        )  # fmt: skip
        if averaging:
            for t in range(W.shape[0]):
                count_row(W, sums, counted, t, first + k)
        Y *= h
        full_prox(W, Y, edges, h * lam, p, width, curvature, 5e-9 * h * h * mean_square, 2000)
        Y /= h
