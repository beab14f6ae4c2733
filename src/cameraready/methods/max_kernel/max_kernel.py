"""`MaxKernel`: the orbit-max kernel projected to the nearest positive semi-definite one, as a GPyTorch kernel."""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import dataclass
from typing import Any, Literal

import torch
from gpytorch.kernels import Kernel
from linear_operator.utils.errors import NanError
from torch import Tensor

from cameraready.methods.max_kernel.enumeration import CHUNK_BYTES
from cameraready.methods.max_kernel.groups import Group
from cameraready.methods.max_kernel.orbit_maximum import OrbitMaximum
from cameraready.methods.max_kernel.projection import inverse_root, psd_projection

Variance = Literal["corrected", "nystrom"]
_SAME_ORBIT = 1e-9**2
_FLOAT32_EIG_TOL = 1e-5


@dataclass(frozen=True)
class ProjectionError:
    """How indefinite ``k_max(D, D)`` was: ``sum |lam_-| / sum |lam|``, the eigenvalues clipped, and the rank kept."""

    neg_mass: float
    n_clipped: int
    rank: int


@dataclass(frozen=True)
class _Spectrum:
    """What depends on the landmarks alone: K, its eigenvalues, ``K_+^{-1/2}``, and the landmarks' own features."""

    K: Tensor
    eigenvalues: Tensor
    root: Tensor
    features: Tensor
    hyperparameters: tuple[Tensor, ...]


@dataclass(frozen=True)
class _Features:
    """phi(x), and what the prior variance ``k_max(x, x)`` has above ``||phi(x)||^2``."""

    phi: Tensor
    gap: Tensor
    row_sum: Tensor
    are_landmarks: bool


class MaxKernel(Kernel):
    r"""The max kernel ``k_max(x, x') = max_{g,g'} k_b(gx, g'x')``, made positive semi-definite on the training inputs.

    With landmarks D (the training inputs), ``K = k_max(D, D) = V diag(lam) V^T`` and
    ``K_+ = V diag(max(lam, 0)) V^T``, the kernel is the Nystrom extension
    ``k_+(x, x') = k_max(x, D) K_+^dagger k_max(D, x')`` plus, by default, a diagonal that restores the prior variance
    away from the data. It is invariant under the group and equals ``K_+`` on the landmarks. Wrap it as
    ``ScaleKernel(MaxKernel(...))``. Where a distance-preserving representative map exists (coordinate permutations,
    sign flips, rotations about a point), ``k_max`` is positive semi-definite already and used as it stands.

    Parameters
    ----------
    base_kernel : gpytorch Kernel
        ``k_b``; a decreasing function of distance (RBF, Matern, RQ) with one lengthscale is the fast case.
    group : Group
        The symmetries, in the coordinates that the kernel sees.
    variance : {"corrected", "nystrom"}
        "corrected" adds ``max(0, k_max(x, x) - k_+(x, x))`` between points of one orbit, so that an acquisition can
        explore; "nystrom" is the paper's kernel, whose prior variance decays to 0 away from the data.
    eig_tol : float
        Eigenvalues above ``eig_tol * lam_max`` are kept in the extension. 1e-8 suits float64.
    double_max : bool
        List both maxima; needed where the base kernel is not invariant under the group.
    chunk_bytes : int
        Most memory an enumeration of the group holds at a time.

    Raises
    ------
    ValueError : lengthscales that the group mixes but that differ (without ``double_max``); NaN or infinite landmarks.
    TypeError : integer inputs.

    Notes
    -----
    In training mode every call on one set of points makes these the landmarks. In evaluation mode the projection
    stays on the landmarks, so a prediction does not depend on which other points are asked for with it.

    Examples
    --------
    >>> import torch
    >>> from gpytorch.kernels import MaternKernel
    >>> from cameraready.methods.max_kernel import BlockPermutations, MaxKernel
    >>> kernel = MaxKernel(MaternKernel(nu=2.5), BlockPermutations(2, 2)).double().eval()
    >>> kernel.set_landmarks(torch.rand(5, 4, dtype=torch.float64))
    >>> x = torch.tensor([[0.1, 0.2, 0.8, 0.9], [0.8, 0.9, 0.1, 0.2]], dtype=torch.float64)
    >>> bool(torch.allclose(kernel(x).to_dense(), torch.ones(2, 2, dtype=torch.float64)))
    True

    References
    ----------
    "Symmetry-Aware Bayesian Optimization via Max Kernels", ICLR 2026, arXiv:2509.25051.
    """

    has_lengthscale = False

    def __init__(
        self,
        base_kernel: Kernel,
        group: Group,
        *,
        variance: Variance = "corrected",
        eig_tol: float = 1e-8,
        double_max: bool = False,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        if variance not in ("corrected", "nystrom"):
            raise ValueError(f"variance={variance!r}; choose 'corrected' or 'nystrom'")
        if not 0 < eig_tol < 1:
            raise ValueError(f"eig_tol={eig_tol} must lie between 0 and 1; 1e-8 suits float64")
        if not isinstance(group, Group):
            raise TypeError(f"group={group!r} is not a Group; pass an instance such as BlockPermutations(4, 2)")
        super().__init__(batch_shape=base_kernel.batch_shape)
        self.base_kernel = base_kernel
        self.group = group
        self.variance = variance
        self.eig_tol = eig_tol
        self.double_max = double_max
        self.chunk_bytes = chunk_bytes
        self._landmarks: Tensor | None = None
        self._landmarks_version = 0
        self._spectrum: _Spectrum | None = None
        self.k_max = OrbitMaximum(base_kernel, group, double_max=double_max, chunk_bytes=chunk_bytes)

    # -- landmarks ------------------------------------------------------------------------------------------------

    @property
    def landmarks(self) -> Tensor | None:
        """The design set D, ``(..., n, d)``; None before the first training call."""
        return self._landmarks

    def set_landmarks(self, X: Tensor) -> None:
        """Project on these points from now on; shape ``(..., n, d)``."""
        old = self._landmarks
        if X is old and X._version == self._landmarks_version:
            return  # BoTorch calls eval() before every posterior: keep the eigenvectors
        if (
            old is not None
            and (X.dtype, X.device) == (old.dtype, old.device)
            and not (X.requires_grad or old.requires_grad)
            and torch.equal(X, old)
        ):
            return  # a training step on the same data: keep the distances
        self.group.check_points(X)
        if X.shape[-2] == 0:
            raise ValueError(f"X has shape {tuple(X.shape)}; the projection needs at least one landmark")
        if X.dtype == torch.float32 and self.eig_tol < _FLOAT32_EIG_TOL:
            warnings.warn(
                "single precision: eigenvalues below 1e-5 of the largest are dropped; use X.double() to keep them",
                stacklevel=2,
            )
        self._landmarks, self._landmarks_version = X, X._version
        self._spectrum = self._distance = None

    def projection_error(self) -> ProjectionError:
        """How far ``k_max(D, D)`` is from positive semi-definite (the worst of a batch)."""
        D = self._require_landmarks()
        with torch.no_grad():
            eigenvalues = torch.linalg.eigvalsh(self._landmark_maximum())
        tol = self._tolerance(D) * eigenvalues[..., -1:]
        negative = eigenvalues.clamp_max(0.0).abs().sum(-1) / eigenvalues.abs().sum(-1)
        return ProjectionError(
            neg_mass=float(negative.max()),
            n_clipped=int((eigenvalues < -tol).sum(-1).max()),
            rank=int((eigenvalues > tol).sum(-1).min()),
        )

    # -- the kernel -----------------------------------------------------------------------------------------------

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, last_dim_is_batch: bool = False, **_: Any) -> Tensor:
        if last_dim_is_batch:
            raise NotImplementedError("MaxKernel acts on whole designs; last_dim_is_batch is not supported")
        same = is_same(x1, x2)
        if self.training and (same or (x1.shape == x2.shape and torch.equal(x1, x2))):
            self.set_landmarks(x1)
            K = self._landmark_maximum()
            K = K if self.k_max.is_psd else psd_projection(K)
            return K.diagonal(dim1=-2, dim2=-1) if diag else K
        if self.k_max.is_psd and self.variance == "corrected":
            return self._diagonal_of_maximum(x1, x2, same=same) if diag else self.k_max(x1, x2)
        first = self._featurise(x1)
        second = first if same else self._featurise(x2)
        if diag:
            value = (first.phi * second.phi).sum(-1)
            if self.variance == "corrected":
                value = value + self._shared_diagonal(x1, x2, first, second, same=same)
            return value
        value = first.phi @ second.phi.transpose(-1, -2)
        if self.variance == "corrected" and not (first.are_landmarks or second.are_landmarks):
            value = value + self._shared_variance(x1, x2, first, second, same=same)
        return value.expand(*torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2], value.shape[:-2]), *value.shape[-2:])

    def _featurise(self, x: Tensor) -> _Features:
        """``phi(x) = k_max(x, D) K_+^{-1/2}``, so that ``k_+(x, x') = phi(x) . phi(x')``."""
        spectrum = self._current_spectrum(x)
        D = self._require_landmarks()
        batch_fits = len(D.shape) <= len(x.shape) and D.shape[-2:] == x.shape[-2:]
        if batch_fits and (is_same(x, D) or torch.equal(x, D.to(x).expand(x.shape))):
            # the correction is zero on D, because diag(K_+) >= diag(K)
            return _Features(spectrum.features, x.new_zeros(x.shape[:-1]), x.new_zeros(x.shape[:-1]), True)
        cross = self.k_max(x, D.to(x))
        phi = cross @ spectrum.root
        if self.variance == "nystrom":
            return _Features(phi, x.new_zeros(x.shape[:-1]), cross.detach().sum(-1), False)
        gap = (self.k_max.diagonal(x) - phi.square().sum(-1)).clamp_min(0.0)
        return _Features(phi, gap, cross.detach().sum(-1), False)

    def _shared_variance(self, x1: Tensor, x2: Tensor, first: _Features, second: _Features, *, same: bool) -> Tensor:
        """The missing prior variance, shared in full by points of one orbit: ``(..., n1, n2)``."""
        gap = 0.5 * (first.gap.unsqueeze(-1) + second.gap.unsqueeze(-2))
        with torch.no_grad():
            # points of one orbit have equal rows k_max(x, D): only such pairs need the orbit distance
            tolerance = 1e-7 * self._require_landmarks().shape[-2]
            shared = (first.row_sum.unsqueeze(-1) - second.row_sum.unsqueeze(-2)).abs() <= tolerance
            shared = shared & (gap > 0)
            if same:
                eye = torch.eye(x1.shape[-2], dtype=torch.bool, device=x1.device)
                candidates = (shared & ~eye).nonzero(as_tuple=True)
            else:
                candidates = shared.nonzero(as_tuple=True)
            if len(candidates[0]):
                *batch, row, column = candidates
                left = x1.expand(*shared.shape[:-2], *x1.shape[-2:])[(*batch, row)].unsqueeze(-2)
                right = x2.expand(*shared.shape[:-2], *x2.shape[-2:])[(*batch, column)].unsqueeze(-2)
                distance = self.group.sq_orbit_distance(left, right, chunk_bytes=self.chunk_bytes)
                shared[candidates] = distance[..., 0, 0] < _SAME_ORBIT
        return torch.where(shared, gap, 0.0)

    def _shared_diagonal(self, x1: Tensor, x2: Tensor, first: _Features, second: _Features, *, same: bool) -> Tensor:
        if same:
            return first.gap
        with torch.no_grad():
            distance = self.group.sq_orbit_distance(x1.unsqueeze(-2), x2.unsqueeze(-2), chunk_bytes=self.chunk_bytes)
        return torch.where(distance[..., 0, 0] < _SAME_ORBIT, 0.5 * (first.gap + second.gap), 0.0)

    def _diagonal_of_maximum(self, x1: Tensor, x2: Tensor, *, same: bool) -> Tensor:
        if same:
            return self.k_max.diagonal(x1)
        return self.k_max(x1.unsqueeze(-2), x2.unsqueeze(-2))[..., 0, 0]

    # -- what is remembered about the landmarks -------------------------------------------------------------------

    def _current_spectrum(self, like: Tensor) -> _Spectrum:
        """Eigenpairs of ``k_max(D, D)``: computed once for these landmarks and hyper-parameters.

        Without gradient, unless the landmarks themselves carry one (fantasies at points being optimised).
        """
        D = self._require_landmarks().to(like)
        now = tuple(self.base_kernel.parameters())
        cached = self._spectrum
        if (
            cached is not None
            and cached.K.dtype == like.dtype
            and cached.K.device == like.device
            and all(torch.equal(old, new) for old, new in zip(cached.hyperparameters, now, strict=True))
        ):
            return cached
        with torch.set_grad_enabled(torch.is_grad_enabled() and D.requires_grad):
            K = self._landmark_maximum().to(like)
            eigenvalues, V = torch.linalg.eigh(K.detach())
            root = inverse_root(K, eigenvalues, V, eig_tol=self._tolerance(D))
            spectrum = _Spectrum(K, eigenvalues, root, K @ root, tuple(p.detach().clone() for p in now))
        if not spectrum.root.requires_grad:
            self._spectrum = spectrum
        return spectrum

    def _landmark_maximum(self) -> Tensor:
        """``k_max(D, D)``. Orbit distances do not depend on one lengthscale: a fit computes them once."""
        D = self._require_landmarks()
        if not self.k_max.by_distance or self.k_max.is_ard or D.requires_grad:
            K = self.k_max(D, D)
        else:
            if self._distance is None:
                self._distance = self.k_max.distance(D, D)
            K = self.k_max.of_distance(self._distance)
        if not torch.isfinite(K).all():  # GPyTorch's own error, after which a fit retries or stops with its best
            raise NanError("k_max of the landmarks is not finite: the inputs or the lengthscale overflow; normalise X")
        return 0.5 * (K + K.transpose(-1, -2))

    def _tolerance(self, D: Tensor) -> float:
        return max(self.eig_tol, _FLOAT32_EIG_TOL) if D.dtype == torch.float32 else self.eig_tol

    def _require_landmarks(self) -> Tensor:
        if self._landmarks is None:
            raise RuntimeError(
                "MaxKernel has no landmarks yet; fit the model in training mode first, "
                "call set_landmarks(train_X), or use MaxKernelGP"
            )
        return self._landmarks

    def __getitem__(self, index: Any) -> Kernel:
        """The kernel of some members of a batch of models."""
        if len(self.batch_shape) == 0:
            return self
        member = self._around(self.base_kernel[index])
        member.batch_shape = member.base_kernel.batch_shape
        if self._landmarks is not None and self._landmarks.ndim > 2:
            member._landmarks = self._landmarks[index if isinstance(index, tuple) else (index,)]
        return member

    def __deepcopy__(self, memo: dict[int, Any]) -> MaxKernel:
        """Copy the base kernel and share the landmarks: a fantasy's may carry a gradient, which cannot be copied."""
        twin = self._around(copy.deepcopy(self.base_kernel, memo))
        memo[id(self)] = twin
        return twin

    def _around(self, base_kernel: Kernel) -> MaxKernel:
        twin = MaxKernel.__new__(type(self))
        twin.__dict__ = dict(self.__dict__)  # copy.copy would share it: GPyTorch's __getstate__ returns the dict itself
        twin._modules = dict(self._modules)
        twin.base_kernel = base_kernel
        twin.k_max = self.k_max.around(base_kernel)
        twin._spectrum = twin._distance = None
        return twin


def is_same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are one view of one memory with the same need for a gradient."""
    return a is b or (
        a.data_ptr() == b.data_ptr()
        and a.shape == b.shape
        and a.stride() == b.stride()
        and a.requires_grad == b.requires_grad
        and math.prod(a.shape) > 0
    )
